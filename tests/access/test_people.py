"""Rights: nobody hands out more than they have, nobody acts in a team that is not theirs."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.people import PROXY, People, Person, as_tenant, may_grant, need_admin, need_lead, role_of
from gateway.core.call import Tenant
from gateway.core.errors import BadRequest, Forbidden, Unauthorized

RANK = {"member": 0, "lead": 1, "admin": 2}
ROLES = st.sampled_from(["member", "lead", "admin"])
TEAMS = st.sampled_from(["a", "b"])


def tenant(role: str, team: str = "a") -> Tenant:
    return Tenant(team=team, key_id="k", admin=role == "admin", lead=role == "lead")


@given(mine=ROLES, team=TEAMS, wished=ROLES)
def test_a_grant_never_exceeds_the_granter(mine: str, team: str, wished: str) -> None:
    """Only admins and leads grant, leads in their own team, and never above themselves."""
    try:
        may_grant(tenant(mine), team, wished)
    except Forbidden:
        assert mine == "member" or (mine == "lead" and (team != "a" or wished == "admin"))
    else:
        assert mine == "admin" or (mine == "lead" and team == "a" and RANK[wished] <= RANK[mine])


@pytest.mark.parametrize(("role", "admin", "lead", "lead_of_b"), [
    ("member", False, False, False), ("lead", False, True, False), ("admin", True, True, True),
])  # fmt: skip
def test_what_a_role_may(role: str, admin: bool, lead: bool, lead_of_b: bool) -> None:
    who = tenant(role)
    assert role_of(who) == role
    for may, allowed in ((lambda: need_admin(who), admin), (lambda: need_lead(who), lead), (lambda: need_lead(who, "b"), lead_of_b)):
        if allowed:
            may()
        else:
            with pytest.raises(Forbidden):
                may()


def test_a_person_acts_as_one_of_their_teams() -> None:
    """The one they ask for, or the only one; never another."""
    one = Person(id="u", issuer=PROXY, subject="s", teams={"a": "lead"})
    two = Person(id="u", issuer=PROXY, subject="s", teams={"a": "lead", "b": "member"})
    assert as_tenant(one, None).lead
    assert (as_tenant(two, "b").team, as_tenant(two, "b").lead) == ("b", False)
    with pytest.raises(BadRequest, match="a, b"):
        as_tenant(two, None)
    with pytest.raises(Forbidden):
        as_tenant(one, "b")
    boss = Person(id="u", issuer=PROXY, subject="s", admin=True)
    assert as_tenant(boss, None).admin


def test_who_was_not_let_in_stays_out() -> None:
    """Unknown, disabled, or vouched for by somebody else."""
    known = People([
        Person(id="u1", issuer=PROXY, subject="ann"), Person(id="u2", issuer=PROXY, subject="bob", disabled_us=5),
    ])  # fmt: skip
    assert known.find(PROXY, "ann").id == "u1"
    for issuer, subject in ((PROXY, "bob"), (PROXY, "eve"), ("https://idp.test", "ann")):
        with pytest.raises(Unauthorized):
            known.find(issuer, subject)
