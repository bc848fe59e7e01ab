"""What a policy becomes for a call whose budget is spent, where that budget says to go down rather than to stop."""

from __future__ import annotations

from dataclasses import replace

from router_policies.rules import Klass, Policy


def downgraded(policy: Policy, budget: str, asked: str) -> Policy | None:
    """The policy with that budget's lanes and model, the budget only counting; None: it says nothing of the kind.

    `asked` is the model as the client wrote it.
    """
    found = next((one for one in policy.budgets if one.name == budget), None)
    down = None if found is None or found.on_exhausted != "downgrade" else found.downgrade
    if down is None:
        return None

    def lower(klass: Klass) -> Klass:
        return replace(klass, lanes=down.lanes) if down.lanes else klass

    models = policy.models
    if down.model is not None:
        models = replace(models, aliases={**models.aliases, asked: down.model})
    return replace(
        policy,
        version=f"{policy.version}~{budget}",
        models=models,
        classes={name: lower(klass) for name, klass in policy.classes.items()},
        rules=tuple(replace(rule, klass=lower(rule.klass)) for rule in policy.rules),
        budgets=tuple(replace(one, on_exhausted="alert") if one.name == budget else one for one in policy.budgets),
    )
