"""A defect that one tenant's pods meet, wherever the core works on them.

`sites` finds every function and method of the extender's core that gets something of these pods as
an argument during some work; `broken` lets one of them raise for it.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from unittest.mock import patch

import linkwise.extender
import linkwise.pods
from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.state.extender_calls import FilterCall
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.kube.objects import Pod

PACKAGES = ("calls", "next", "place", "state")


class DefectError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Site:
    owner: ModuleType | type
    name: str

    def __str__(self) -> str:
        of = self.owner.__name__
        where = of if inspect.ismodule(self.owner) else f"{self.owner.__module__}.{of}"
        return f"{where.removeprefix('linkwise.extender.')}.{self.name}"


@functools.cache
def _modules() -> tuple[ModuleType, ...]:
    found = pkgutil.walk_packages(linkwise.extender.__path__, "linkwise.extender.")
    names = [each.name for each in found if each.name.split(".")[2] in PACKAGES]
    names += [each.name for each in pkgutil.walk_packages(linkwise.pods.__path__, "linkwise.pods.")]
    return tuple(importlib.import_module(name) for name in names)


def _functions() -> Iterator[tuple[Site, FunctionType]]:
    for module in _modules():
        for name, one in vars(module).items():
            if inspect.isfunction(one) and one.__module__ == module.__name__:
                yield Site(module, name), one
            if inspect.isclass(one) and one.__module__ == module.__name__:
                for method, code in vars(one).items():
                    if inspect.isfunction(code) and not method.startswith("__"):
                        yield Site(one, method), code


def is_of(what: object, tenant: str) -> bool:
    """Whether this names one of the tenant's pods or gangs: their names begin so."""
    match what:
        case PodRecord():
            return what.ref.name.startswith(tenant)
        case Pod():
            return what.metadata.name.startswith(tenant)
        case GangKey():
            return what.name.startswith(tenant)
        case Gang():
            return what.key.name.startswith(tenant)
        case GangMembers():
            return any(is_of(member, tenant) for member in what.all)
        case [PodRecord(), *_] as members:
            return all(is_of(each, tenant) for each in members)
        case FilterCall():
            return is_of(what.pod, tenant)
    return False


@contextmanager
def _wrapped(
    functions: Mapping[Site, FunctionType],
    tenant: str,
    meets: Callable[[Site, Mapping[str, object]], object],
) -> Iterator[None]:
    with ExitStack() as patches:
        for site, function in functions.items():

            @functools.wraps(function)
            def wrapper(
                *args: object,
                _function: FunctionType = function,
                _site: Site = site,
                **more: object,
            ) -> object:
                if any(is_of(each, tenant) for each in (*args, *more.values())):
                    bound = inspect.signature(_function).bind(*args, **more)
                    bound.apply_defaults()
                    meets(_site, bound.arguments)
                return _function(*args, **more)

            patches.enter_context(patch.object(site.owner, site.name, wrapper))
            if inspect.ismodule(site.owner):
                for module in _modules():  # which may have imported it by name
                    if module is not site.owner and vars(module).get(site.name) is function:
                        patches.enter_context(patch.object(module, site.name, wrapper))
        yield


def sites(tenant: str, work: Callable[[], object]) -> list[Site]:
    """Return where the core works on the tenant's pods during *work*."""
    met: set[Site] = set()
    with _wrapped(dict(_functions()), tenant, lambda site, _bound: met.add(site)):
        work()
    return sorted(met, key=str)


@contextmanager
def broken(site: Site, tenant: str) -> Iterator[None]:
    """Let *site* raise DefectError whenever it works on the tenant's pods, in a frame that has the
    names of its own parameters."""
    function = vars(site.owner)[site.name]
    parameters = inspect.signature(function).parameters
    scope: dict[str, Callable[..., object]] = {"DefectError": DefectError}
    exec(f"def raises({', '.join(parameters)}): raise DefectError('at {site}')", scope)

    def meets(_site: Site, bound: Mapping[str, object]) -> None:
        scope["raises"](**bound)

    with _wrapped({site: function}, tenant, meets):
        yield
