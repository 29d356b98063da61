"""Which hosts need not be rendered apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import StrictUndefined
from jinja2.nativetypes import NativeEnvironment

from fleetctl.store.render_alike import find_alike


def test_hosts_with_the_same_values_behind_their_templates_are_alike() -> None:
    hostvars = {
        "a": {"v": "{{ branch }}.1", "branch": "{{ major }}", "major": "580", "ansible_host": "10.0.0.1"},
        "b": {"v": "{{ branch }}.1", "branch": "{{ major }}", "major": "580", "ansible_host": "10.0.0.2"},
        "c": {"v": "{{ branch }}.1", "branch": "{{ major }}", "major": "570"},
        "d": {"v": "{{ branch }}.1", "branch": "{{ major }}"},
        "e": {"v": "{{ branch }}.2", "branch": "{{ major }}", "major": "580"},
    }
    assert find_alike(hostvars, {host: ["v"] for host in hostvars}) == {
        "a": "a",
        "b": "a",
        "c": "c",
        "d": "d",
        "e": "e",
    }


@pytest.mark.parametrize(
    "template",
    [
        "{{ inventory_hostname }}",
        "{{ hostvars['x'].y }}",
        "{{ groups.rack | length }}",
        "{{ group_names }}",
        "{{ lookup('vars', 'a' ~ 'b') }}",
        "{{ query('file', path) }}",
        "{{ vars['x'] }}",
        ["{{ nested }}"],
    ],
)
def test_a_template_that_sees_more_makes_every_host_its_own(template: object) -> None:
    hostvars = {"a": {"v": template, "nested": "{{ inventory_hostname_short }}"}}
    assert find_alike(hostvars, {"a": ["v"]}) is None


names = st.sampled_from(["a", "b", "c", "d"])
texts = st.one_of(
    st.sampled_from(["1", "2"]),
    names.map("{{{{ {} }}}}".format),
    st.tuples(names, names).map("{{{{ {0[0]} ~ {0[1]} }}}}".format),
)


@given(
    st.dictionaries(
        st.sampled_from(["h1", "h2", "h3"]), st.fixed_dictionaries({"a": texts}, optional=dict.fromkeys("bcd", texts))
    )
)
def test_what_is_held_alike_renders_alike(hostvars: dict[str, dict[str, str]]) -> None:
    alike = find_alike(hostvars, {host: ["a"] for host in hostvars})
    assert alike is not None
    for host, like in alike.items():
        assert rendered(hostvars[host]) == rendered(hostvars[like])


def rendered(variables: dict[str, str]) -> str:
    """The value of `a`, rendered over and over until it is plain, without Ansible."""
    environment = NativeEnvironment(undefined=StrictUndefined)
    value = variables["a"]
    for _ in range(6):
        try:
            value = str(environment.from_string(value).render(variables))
        except Exception as exc:  # noqa: BLE001 (any failure is an answer)
            return str(exc)
    return value
