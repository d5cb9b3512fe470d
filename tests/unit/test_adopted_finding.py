"""A configuration is found in scripts as people write them, and what is wrong with a script is one line."""

import textwrap
from pathlib import Path

import pytest
from ray import cloudpickle

from study.adopted.loading import Adopted, read_script
from study.errors import SpaceError
from tests.scripts import forked_readings

PPO = """
from ray.rllib.algorithms.ppo import PPOConfig
config = PPOConfig().environment("CartPole-v1").training(lr=0.0007, train_batch_size_per_learner=512)
"""
MINE = (
    "import gymnasium\nfrom ray import tune\ntune.register_env('mine', lambda context: gymnasium.make('CartPole-v1'))\n"
)


@pytest.fixture(scope="module", autouse=True)
def _forked():
    with forked_readings():
        yield


@pytest.fixture
def read(tmp_path: Path):
    def _read(code: str, name: str = "", **settings) -> Adopted:
        file = tmp_path / "my_train.py"
        file.write_text(textwrap.dedent(code))
        return read_script(f"{file}{name}", **settings)

    return _read


FOUND = {
    "module level, config": PPO,
    "build_algo": PPO
    + """
import ray
ray.init(num_cpus=4)
if not ray.is_initialized(): raise RuntimeError
algo = config.build_algo()
try:
    while True: algo.train()
except Exception: pass
finally: ray.shutdown()
""",
    "tune.Tuner": PPO
    + """
from ray import tune
tune.Tuner("PPO", param_space=config, run_config=tune.RunConfig(stop={"training_iteration": 3})).fit()
""",
    "tune.run": PPO
    + """
from ray.tune import run
run("PPO", config=config.to_dict(), stop={"training_iteration": 3})
""",
    "tune.Tuner ": """
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.examples.utils import add_rllib_example_script_args, run_rllib_example_script_experiment
parser = add_rllib_example_script_args(default_iters=3)
if __name__ == "__main__":
    args = parser.parse_args()
    base_config = PPOConfig().environment("CartPole-v1").training(lr=0.0007, train_batch_size_per_learner=512)
    run_rllib_example_script_experiment(base_config, args)
""",
}


@pytest.mark.parametrize("how", FOUND)
def test_a_configuration_is_found_as_people_write_it(how, read):
    found = read(FOUND[how])
    facts = found.facts
    assert (facts.found_as, facts.algorithm, facts.environment) == (how.strip(), "PPO", "CartPole-v1")
    assert (facts.values["lr"], facts.values["train_batch_size"], facts.searched) == (0.0007, 512, [])
    assert facts.stop.get("training_iteration") == (None if how.startswith(("m", "b")) else 3)
    config = cloudpickle.loads(found.pickled)["config"]
    assert (config.lr, config.total_train_batch_size, config.env) == (0.0007, 512, "CartPole-v1")


def test_the_configuration_is_as_it_was_at_the_line_that_trains_with_its_arguments(read):
    code = PPO + "for lr in (0.1, 0.2):\n    config.training(lr=lr)\n    config.build_algo().train()\n"
    assert read(code).facts.values["lr"] == 0.1
    ends = "import sys\nsys.stdout.close()\ntry: config.build_algo()\nexcept: sys.exit(1)\n"
    assert read(PPO + ends).facts.values["lr"] == 0.0007
    code = PPO + "import sys\nconfig.env_runners(num_env_runners=int(sys.argv[1]))\nassert __name__ == '__main__'\n"
    assert read(code, args=["3"]).facts.values["num_env_runners"] == 3


def test_an_object_is_named(read):
    code = PPO + "other = config.copy().training(lr=0.5)\ndef make(): return config.copy().training(lr=0.25)\n"
    assert read(code, ":other").facts.values["lr"] == 0.5
    assert read(code, ":make").facts.values["lr"] == 0.25
    trains = code + "def main(): config.training(lr=0.125).build_algo().train()\n"
    assert read(trains, ":main").facts.values["lr"] == 0.125


def test_what_the_script_lets_tune_choose_has_one_value_the_same_at_every_reading(read):
    chosen = "config.training(lr=tune.loguniform(1e-5, 1e-3), gamma=tune.grid_search([0.9, 0.99]))\n"
    code = PPO + MINE + chosen + "tune.Tuner('PPO', param_space=config).fit()\n"
    facts, again = read(code).facts, read(code, args=["again"]).facts
    assert facts.searched == ["gamma", "lr"] and facts == again
    assert 1e-5 <= facts.values["lr"] <= 1e-3 and facts.values["gamma"] == 0.9


def test_what_the_process_of_the_script_has_is_found(read, tmp_path, monkeypatch):
    beside, elsewhere = tmp_path / "beside.py", tmp_path / "src" / "elsewhere.py"
    elsewhere.parent.mkdir()
    beside.write_text("import os\nos.environ['OF_A_MODULE'] = 'yes'")
    elsewhere.write_text("")
    monkeypatch.chdir(tmp_path)
    code = """
import os, sys, ray
sys.path.insert(0, "src")
import beside, elsewhere
tune.register_env("mine", lambda context: gymnasium.make(f"CartPole-v{int(os.environ['LEVEL']) - 2}"))
ray.init(runtime_env={"env_vars": {"LEVEL": "3"}})
config.environment("mine").build_algo().train()
"""
    found = read(PPO + MINE + code)
    assert found.variables == {"LEVEL": "3", "OF_A_MODULE": "yes"}
    assert found.paths == (str(elsewhere.parent), str(tmp_path))
    assert {(each.name, each.path) for each in found.modules} >= {("beside", beside), ("elsewhere", elsewhere)}
    assert found.environment["PYTHONPATH"].startswith(f"{elsewhere.parent}:{tmp_path}")


def test_what_a_script_imports_and_reads_belongs_to_its_facts(read, tmp_path):
    code = (
        PPO
        + """
import gymnasium, json, mine, pathlib, time
class Env(gymnasium.Wrapper):
    def __init__(self, context): super().__init__(gymnasium.make("CartPole-v1"))
level = json.loads((pathlib.Path(__file__).parent / "level.json").read_text())
config.environment(Env, env_config=level | {"of": {"b", "a"}}).env_runners(batch_mode="complete_episodes")
config.offline_data(output=str(time.time_ns()))
config.logger_config = {"logdir": time.time_ns()}
"""
    )

    def facts(level, again):
        (tmp_path / "mine.py").write_text(f"LEVEL = {level}")
        (tmp_path / "level.json").write_text(f'{{"hard": {level}}}')
        return read(code, args=[again]).facts

    first = facts(1, "a")
    assert first == facts(1, "b"), "where logs go changes no training"
    assert {*first.source.modules} == {"mine"}
    assert first.settings == {"batch_mode": "complete_episodes", "env_config": "{hard: 1, of: {a, b}}"}
    other = dict(facts(2, "c"))
    assert [name for name, value in first if value != other[name]] == ["source", "settings"]


@pytest.mark.parametrize(
    "register",
    [
        "tune.register_env('mine-v0', lambda context: MyEnv(context))",
        "gymnasium.register('mine-v0', entry_point=lambda length: MyEnv(dict(length=length)))",
    ],
)
def test_environments_registered_in_the_script_travel_with_it(read, register):
    code = PPO + "import gymnasium\nfrom ray import tune\nclass MyEnv(gymnasium.Wrapper):\n"
    code += "    def __init__(self, context):\n        super().__init__(gymnasium.make('CartPole-v1'))\n"
    code += "        self.length = context['length']\n"
    found = read(f"{code}{register}\nconfig.environment('mine-v0', env_config=dict(length=5))\n")
    creator = cloudpickle.loads(found.pickled)["environments"][found.facts.environment]
    assert creator({"length": 5}).get_wrapper_attr("length") == 5


@pytest.mark.parametrize(("name", "sharing"), [("Plain", "harmless"), ("OneWorld", "wrong")])
def test_environments_that_keep_state_in_their_process_are_noticed(read, name, sharing):
    code = f"from tests.environments import {name}\nconfig.environment(lambda context: {name}())\n"
    assert read(PPO + code).facts.sharing == sharing


BAD = {  # the problem, and for a fault of a line which one -> script
    (2, "must come to its training, got ValueError: no data here"): "x = 1\nraise ValueError('no data here')",
    (4, "the following arguments are required: --num-agents"): "import argparse\np = argparse.ArgumentParser()\n"
    "p.add_argument('--num-agents', required=True)\np.parse_args()",
    (6, "what Tune trains must be an algorithm of RLlib .*, got 'mine'"): PPO
    + "from ray import tune\ndef mine(settings): config.build_algo().train()\ntune.Tuner(mine).fit()",
    (None, "its process must come to its training, got it was killed"): "import os\nos.kill(os.getpid(), 9)",
    (6, "without a running Ray"): PPO + "import ray\nray.init()\nref = ray.put(3)\nconfig.training(lr=ray.get(ref))",
    (5, "begin with new networks"): PPO + "from ray.rllib.algorithms.ppo import PPO\nPPO.from_checkpoint('x').train()",
    (None, r"must hold a configuration .* Fix: Write a function"): "def get_config(): return 1",
    (None, r"must name one of several .*, got config, other.* Fix: .*my_train\.py:config"): PPO
    + "other = config.copy()",
    (None, "cannot pickle '_thread.lock' object"): PPO
    + "import threading\nlock = threading.Lock()\nconfig.callbacks(on_episode_end=lambda **kw: lock.acquire())",
    (None, "must use RLlib's new API stack"): PPO
    + "config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)",
    (None, "the environment 'mine' must be made .*no_such_simulator.* Fix: Install it"): PPO
    + "from ray import tune\ndef make(context): import no_such_simulator\n"
    "tune.register_env('mine', make)\nconfig.environment('mine')",
    (None, "minibatch_size <= train_batch_size"): PPO + "config.training(minibatch_size=10_000)\nconfig.build_algo()",
    (None, "'missing' must be an AlgorithmConfig, or a function that returns one, got no such name"): (PPO, ":missing"),
}


@pytest.mark.parametrize(("line", "problem"), BAD)
def test_what_is_wrong_with_a_script_is_one_line(line, problem, read):
    given = BAD[line, problem]
    with pytest.raises(SpaceError, match=rf"1 problem\n.*{problem}.*$") as caught:
        read(*([given] if isinstance(given, str) else given), where="--config")
    (fault,) = caught.value.faults
    assert fault.fix
    assert fault.where == f"--config: my_train.py, line {line}" if line else "line" not in fault.where


@pytest.mark.parametrize(("text", "rule"), [("no_such.py", "no such file"), ("my_module:a", "must be a Python file")])
def test_a_file_that_is_no_script_is_refused(text, rule):
    with pytest.raises(SpaceError, match=f"1 problem\n  config: {rule}, got '{text}'"):
        read_script(text)
