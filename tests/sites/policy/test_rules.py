"""Every rule has a plan that keeps it and one that breaks it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netfleet.errors import PolicyError
from netfleet.runs.contract_check import DataFacts
from netfleet.sites.policy.in_force import PolicyInForce
from netfleet.sites.policy.rules import (
    Budget,
    PlanFacts,
    data_findings,
    enforce,
    plan_facts,
    plan_findings,
    privacy_findings,
)
from netfleet.sites.policy.settings import Policy, PrivacyRules, parse_policy
from netfleet.sites.policy.starter import starting_policy

PLAN = PlanFacts("net-fleet", None, 32, own_loop=False, neighbours=("b", "c"))


def broken(policy: Policy, plan: PlanFacts) -> list[str]:
    return [finding.rule for finding in plan_findings(policy, plan) if not finding.holds]


@pytest.mark.parametrize(
    ("rule", "value", "change"),
    [
        ("training.methods", ["net-fleet", "k-gt"], {"method": "led"}),
        ("training.methods", ["net-fleet"], {"method": "mine:Method"}),
        ("training.compression", False, {"compression": "top-k"}),
        ("training.least_batch", 32, {"batch": 31}),
        ("training.least_batch", 32, {"batch": None}),
        ("neighbours.least", 2, {"neighbours": ("b",)}),
        ("neighbours.least", 1, {"neighbours": ()}),
        ("neighbours.names", ["b", "c"], {"neighbours": ("b", "c", "d")}),
        ("neighbours.names", ["b", "c"], {"neighbours": ("B",)}),
    ],
)
def test_a_rule_of_the_plan_holds_or_is_broken(rule: str, value: Any, change: dict[str, Any]) -> None:
    table, key = rule.split(".")
    policy = parse_policy({table: {key: value}})
    assert broken(policy, PLAN) == []
    assert [finding.rule for finding in plan_findings(policy, PLAN)] == [rule]
    assert broken(policy, replace(PLAN, **change)) == [rule]
    assert broken(Policy(), replace(PLAN, **change)) == []


def test_aliases_of_methods_and_batches_of_all_rows_are_allowed() -> None:
    from netfleet.algorithms import ALGORITHMS

    alias, name = next(iter(ALGORITHMS.aliases.items()))
    assert broken(parse_policy({"training": {"methods": [alias]}}), replace(PLAN, method=name)) == []
    assert broken(parse_policy({"training": {"least_batch": 32}}), replace(PLAN, batch=0)) == []


def test_a_loop_of_the_sites_own_chooses_its_batches() -> None:
    policy = parse_policy({"training": {"least_batch": 32}})
    assert broken(policy, replace(PLAN, batch=None, own_loop=True)) == []


@pytest.mark.parametrize(
    ("rules", "budget", "expected"),
    [
        ({"required": True}, None, ["privacy.required"]),
        ({"required": True}, Budget(3.0, 1e-6), []),
        ({"epsilon": 2.0, "delta": 1e-7}, None, []),
        ({"epsilon": 3.0}, Budget(3.0, 1e-6), []),
        ({"epsilon": 2.9}, Budget(3.0, 1e-6), ["privacy.epsilon"]),
        ({"epsilon": 2.9}, Budget(None, 1e-6), ["privacy.epsilon"]),
        ({"delta": 1e-6}, Budget(3.0, 1e-6), []),
        ({"delta": 1e-7}, Budget(3.0, 1e-6), ["privacy.delta"]),
        ({"epsilon": 2.9}, Budget(float("nan"), 1e-6), ["privacy.epsilon"]),
    ],
)
def test_the_rules_of_privacy(rules: dict[str, Any], budget: Budget | None, expected: list[str]) -> None:
    policy = parse_policy({"privacy": rules})
    assert [f.rule for f in privacy_findings(policy, budget, final=True) if not f.holds] == expected


def test_an_epsilon_that_is_not_known_yet_may_become_known_later() -> None:
    policy = parse_policy({"privacy": {"required": True, "epsilon": 1.0}})
    assert all(finding.holds for finding in privacy_findings(policy, Budget(None, 1e-6)))


@pytest.mark.parametrize(
    ("rules", "data", "expected"),
    [
        ({"least_rows": 50}, DataFacts(50, None), []),
        ({"least_rows": 50}, DataFacts(49, None), ["data.least_rows"]),
        ({"least_classes": 2}, DataFacts(50, 2), []),
        ({"least_classes": 2}, DataFacts(50, 1), ["data.least_classes"]),
        ({"least_classes": 2}, DataFacts(50, None), []),
    ],
)
def test_the_rules_of_data(rules: dict[str, Any], data: DataFacts, expected: list[str]) -> None:
    policy = parse_policy({"data": rules})
    assert [finding.rule for finding in data_findings(policy, data) if not finding.holds] == expected


def test_the_error_names_the_rule_what_came_what_is_allowed_and_what_to_do() -> None:
    policy = parse_policy({"training": {"least_batch": 64, "methods": ["led"]}})
    in_force = PolicyInForce(policy, Path("own.toml"), "ab" * 32)
    with pytest.raises(PolicyError) as error:
        enforce(in_force, plan_findings(policy, PLAN))
    assert str(error.value) == (
        "policy own.toml, rule training.methods: the plan has net-fleet, the policy allows led; ask for a plan with "
        "one of these, or add it to methods (and 1 more: netfleet policy check shows all)"
    )
    enforce(in_force, [])


def test_facts_come_from_the_experiment_as_it_is() -> None:
    table = {
        "algorithms": [{"kind": "k-gt", "compress": {"kind": "top-k"}}],
        "problem": {"kind": "classification", "batch": 8, "data": "no.such.module:load"},
    }
    assert plan_facts(table, ["b"]) == PlanFacts("k-gt", "top-k", 8, own_loop=False, neighbours=("b",))
    assert plan_facts({}, []) == PlanFacts("net-fleet", None, None, own_loop=False, neighbours=())
    assert plan_facts({"problem": {"kind": "own-loop"}}, []).own_loop


@pytest.mark.parametrize(
    ("privacy", "rules"),
    [
        (None, PrivacyRules()),
        ({"clip": 1.0, "epsilon": 5, "delta": 1e-3}, PrivacyRules(required=True, epsilon=5.0, delta=1e-3)),
        ({"clip": 1.0, "noise": 2.0}, PrivacyRules(required=True, delta=1e-5)),
    ],
)
def test_a_first_policy_asks_for_the_privacy_that_the_plan_has(privacy: Any, rules: PrivacyRules) -> None:
    table = {} if privacy is None else {"privacy": privacy}
    text = starting_policy(plan_facts(table, ["b"]))
    assert parse_policy(tomllib.loads(text)).privacy == rules
