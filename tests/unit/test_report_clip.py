"""The film in the report: it is in the page, and what is no film of the study is left out and said."""

import json

import pytest

from analysis.report import find_clip, to_html, to_markdown, write
from analysis.report.clip import MAX_BYTES
from study.records.clip import FilmFacts, Shot
from tests.unit.test_report import Outline, build, table
from tests.values import replace

SHOT = Shot(episode=0, seed=5, episode_return=-74.0, num_steps=75, num_frames=76, whole=True)
FACTS = FilmFacts(
    file="best.gif",
    study_id="abc",
    trial=7,
    environment="Acrobot-v1",
    deterministic=True,
    evaluation_seed=10_000,
    fps=15.0,
    shots=(SHOT, replace(SHOT, episode=1, episode_return=-91.0, whole=False)),
)


def put_clip(folder, facts=FACTS, film=b"GIF89a..."):
    clips = folder / "clips"
    clips.mkdir()
    (clips / facts.file).write_bytes(film)
    facts.write(clips / facts.file)
    return folder


def test_the_page_holds_the_film_and_asks_for_nothing(tmp_path):
    clip = find_clip(put_clip(tmp_path), "abc")
    assert clip.caption == (
        "The first 2 greedy episodes of trial 7 in Acrobot-v1, evaluation seed 10000; returns -74 and -91. The last "
        "one is not shown to its end. Single episodes: an impression, no result."
    )
    report = build([table("T8")], [], clip=clip)
    outline = Outline(to_html(report))
    assert outline.faults == []
    assert [each[:22] for each in outline.asks if not each.startswith("#")] == ["data:image/gif;base64,"]
    assert f"![{clip.caption}](figures/clip.gif)" in to_markdown(report)
    assert {file.name for file in write(report, tmp_path / "out", ["md"])} >= {"clip.gif"}
    write(build([table("T8")], []), tmp_path / "out", ["md"])
    assert not (tmp_path / "out" / "figures" / "clip.gif").exists()


def test_a_film_with_a_button_has_its_poster(tmp_path):
    put_clip(tmp_path, replace(FACTS, file="best.mp4"), b"\0\0\0\x20ftypisom")
    (tmp_path / "clips" / "best.png").write_bytes(b"\x89PNG")
    page = to_html(build([table("T8")], [], clip=find_clip(tmp_path, "abc")))
    assert 'poster="data:image/png;base64,' in page
    assert 'src="data:video/mp4;base64,' in page
    assert "media-src data:" in page
    assert " autoplay" not in page


@pytest.mark.parametrize(
    ("facts", "film", "why"),
    [
        (FACTS, b"<svg onload=alert(1)>", "must be a .gif, got another content"),
        (FACTS, b"GIF8" + b"\0" * MAX_BYTES, "must have at most 2 MB"),
        (replace(FACTS, study_id="other"), b"GIF8", "must show this study, got other"),
    ],
)
def test_what_is_no_film_of_this_study_is_left_out_and_said(tmp_path, facts, film, why):
    clip = find_clip(put_clip(tmp_path, facts, film), "abc")
    assert why in clip.missing
    report = build([table("T8")], [], clip=clip)
    assert why in to_html(report)
    assert "data:image/gif" not in to_html(report)
    assert why in to_markdown(report)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"file": "../x.gif"}', "[" * 10**5, json.dumps({"shots": [{"episode": 1}], "file": "x.gif"})],
)
def test_damaged_facts_are_a_sentence(tmp_path, text):
    put_clip(tmp_path)
    (tmp_path / "clips" / "best.json").write_text(text)
    assert "must say what a film shows, got a damaged file" in find_clip(tmp_path, "abc").missing


def test_facts_lead_to_no_file_elsewhere_and_without_them_there_is_no_film(tmp_path):
    assert find_clip(tmp_path, "abc") is None
    file = put_clip(tmp_path) / "clips" / "best.json"
    file.write_text(file.read_text().replace('"best.gif"', '"../../secret.gif"'))
    assert "no film: '../../secret.gif'" in find_clip(tmp_path, "abc").missing
