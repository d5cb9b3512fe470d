"""The answer on the page of a study's run in MLflow. Imports MLflow only once work begins."""

from study.errors import TrackingError
from study.harmless import mask_credentials
from study.mirrors.mlflow_content import NOTE, STUDY, cut, key_tags, search_text
from study.mirrors.tracking_uri import answering, check_tracking_uri, set_client_defaults, sqlite_path


def publish_answer(markdown: str, *, tracking_uri: str, name: str, study_id: str) -> None:
    """Show the answer of a study on the page of its run in MLflow, its first line in the list of experiments.

    They take the place of an earlier answer. `name` is that of the study, and so of its experiment.

    Raises:
        TrackingError: MLflow does not answer, or does not know the study.
    """
    uri = check_tracking_uri(tracking_uri)
    set_client_defaults()
    from mlflow import MlflowClient

    with answering(uri):
        database = sqlite_path(uri)
        client = MlflowClient(tracking_uri=uri) if database is None or database.exists() else None
        experiment = client.get_experiment_by_name(name) if client is not None else None
        if client is not None and experiment is not None and experiment.lifecycle_stage == "active":
            text = search_text(key_tags(study_id, STUDY))
            for run in client.search_runs([experiment.experiment_id], text, max_results=1):
                client.set_tag(run.info.run_id, NOTE, cut(markdown))
                first_line = cut(markdown.partition("\n")[0].strip("*"))  # the list does not render bold type
                client.set_experiment_tag(experiment.experiment_id, NOTE, first_line)
                return
    rule, fix = f"must hold the study {name!r} ({study_id})", "Send it there first, by `python -m study sync STUDY`."
    raise TrackingError(where=f"tracking URI {mask_credentials(uri)}", rule=rule, got="none", fix=fix)
