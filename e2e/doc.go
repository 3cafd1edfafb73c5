// Package e2e holds the tests that see Weir as its users do: HTTP requests go through a real Envoy, are decided by a
// sidecar and debited in a real Redis.
//
// One Redis serves all of them; its clock stands still until a test moves it, so that every header and every body is
// exact. Each test has values of its own in its requests and a day of its own on that clock, and so meets no state of
// another. Time decides nothing: Envoy and the sidecar wait for answers far longer than any takes, and what is counted
// is waited for.
//
// The files fleet_*_test.go see it as its operators do: several sidecar processes on a Redis of their own, under load,
// with clocks that step, stores that fail and processes that are killed. What they assert is exact or a bound by the
// store's clock; where a test must end what would hang, it waits a minute.
package e2e
