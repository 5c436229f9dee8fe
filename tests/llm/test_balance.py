"""Which server gets the next attempt, and how long one that failed is left alone."""

from flowright.llm.retries import REST_AFTER, REST_SECONDS, Balance


def test_a_resting_server_gets_a_single_probe():
    now = 0.0
    balance = Balance(("a", "b"), ("k",), clock=lambda: now)
    for _ in range(REST_AFTER):
        lease = balance.lease(avoid=balance.servers[1])
        assert lease.server.url == "a"
        balance.failed(lease)
    assert {balance.lease().server.url for _ in range(5)} == {"b"}
    now = REST_SECONDS + 0.1
    leases = [balance.lease() for _ in range(5)]
    probes = [lease for lease in leases if lease.server.url == "a"]
    assert len(probes) == 1
    assert probes[0].probe
    balance.succeeded(probes[0])
    assert "a" in {balance.lease().server.url for _ in range(5)}


def test_a_failed_probe_doubles_the_rest():
    now = 0.0
    balance = Balance(("a", "b"), ("k",), clock=lambda: now)
    balance.failed(balance.lease(avoid=balance.servers[1]), at_once=True)
    now = REST_SECONDS + 0.1
    probe = next(lease for lease in (balance.lease() for _ in range(2)) if lease.probe)
    balance.failed(probe)
    now += REST_SECONDS + 0.1
    assert {balance.lease().server.url for _ in range(4)} == {"b"}
    now += REST_SECONDS
    assert "a" in {balance.lease().server.url for _ in range(4)}


def test_health_never_refuses_work():
    balance = Balance(("a",), ("k",), clock=lambda: 0.0)
    for _ in range(10):
        balance.failed(balance.lease(), at_once=True)
    assert balance.lease().server.url == "a"
