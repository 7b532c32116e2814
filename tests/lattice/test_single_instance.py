"""What makes site functions and domains gives ranks that are threads the same objects, so that they bind launches together."""

import re
import threading
from pathlib import Path

from programs import run_python

import jali
from jali.single_instance import single_instance


def test_two_threads_that_ask_at_once_get_the_same_object():
    requests, calls, found = threading.Semaphore(0), [], []

    @single_instance
    def make(number):
        calls.append(number)
        assert requests.acquire(timeout=60)  # until both have asked
        assert requests.acquire(timeout=60)
        return object()

    def ask():
        requests.release()
        found.append(make(3))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [3]
    assert found[0] is found[1]


def test_what_launches_are_bound_by_is_made_once():
    """Else two ranks may bind by objects of their own, and one of them alone again, which waits for the other for ever."""
    kinds = r"SiteFunction|Colouring|Domain|Callable"
    found = set()
    for path in (Path(jali.__file__).parent).rglob("*.py"):
        cached = re.findall(r"@functools\.(?:lru_)?cache.*\ndef (\w+)\([^)]*\) -> (.*):", path.read_text())
        found |= {name for name, kind in cached if re.search(kinds, kind)}
    of_numbers = {"_host_kernel"}  # which no launch is bound by
    assert (
        found == {"_three_colours", "_searched_colours"} | of_numbers
    )  # made for _link_colours alone, which is


FRESH = """
import sys
sys.setswitchinterval(1e-6)  # ranks take turns at every step
import jali
from jali.gauge import SU, GaugeField, sweep, symanzik_action

def history():
    U = GaugeField(jali.Lattice(4, 4, 4, 4), SU(2)).hot_start(seed=3)
    rng = jali.Random(seed=4)
    for _ in range(2):
        sweep(U, symanzik_action(1.1), rng, heatbath=1, overrelaxation=1)

jali.settings.use(watchdog=20.0)
jali.virtual_ranks(2, history)
"""


def test_ranks_that_find_nothing_made_yet_bind_the_same_launches():
    for _ in range(3):
        run_python(FRESH)
