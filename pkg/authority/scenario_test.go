package authority

import (
	"testing"

	"github.com/weir-rl/weir/pkg/limit"
)

// scenario is one rule of the semantics with the right values written down. It
// begins with an empty store whose clock stands at epoch. The mutant harness
// runs scenarios too, which is why they report to their lab.
type scenario struct {
	name string
	run  func(l *lab)
}

// scenarios are all of them; the files scenario_*_test.go have one list each.
func scenarios() []scenario {
	var all []scenario
	for _, list := range [][]scenario{
		windowScenarios, bucketScenarios, requestScenarios, overdrawScenarios, timeScenarios, formScenarios, versionScenarios,
	} {
		all = append(all, list...)
	}
	return all
}

// TestScript runs every scenario on the script as it is.
func TestScript(t *testing.T) {
	l := newLab(t)
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			l.reporter = t
			l.clear()
			l.at(epoch)
			s.run(l)
		})
	}
}

// fixed is a rule of limit hits per window of that many ms.
func fixed(hits, window int64) *limit.Params {
	p := &limit.Params{Algorithm: limit.FixedWindow, Limit: hits, Window: window, Capacity: hits, OverdrawCap: hits}
	p.Rate(hits, window)
	return p
}

// bucket is a rule of that capacity that drains by hits per window of ms.
func bucket(capacity, hits, window int64) *limit.Params {
	p := &limit.Params{Algorithm: limit.TokenBucket, Limit: hits, Window: window, Capacity: capacity, OverdrawCap: capacity}
	p.Rate(hits, window)
	return p
}

// edit returns a changed copy of a rule: another revision of it.
func edit(p *limit.Params, change func(*limit.Params)) *limit.Params {
	c := *p
	change(&c)
	return &c
}

// version returns the rule under another policy version.
func version(v uint64, p *limit.Params) *limit.Params {
	return edit(p, func(p *limit.Params) { p.Version = v })
}

var keyA, keyB, keyC = keyNumber(0), keyNumber(1), keyNumber(2)

func check(kind limit.Kind, k limit.Key, p *limit.Params, cost int64) limit.Check {
	return limit.Check{Key: k, Params: p, Cost: cost, Kind: kind}
}

func take(k limit.Key, p *limit.Params, cost int64) limit.Check {
	return check(limit.Enforced, k, p, cost)
}

func overdraws(c limit.Check) limit.Check {
	c.Overdraw = true
	return c
}

// The verdicts that scenarios want; times are in ms.

func allowed(remaining, reset int64) limit.Verdict {
	return limit.Verdict{
		Outcome: limit.Allow, Source: limit.SourceAuthority, Cause: limit.CauseAllowed, Remaining: remaining, Reset: reset,
	}
}

func denied(retry int64) limit.Verdict {
	return limit.Verdict{
		Outcome: limit.Deny, Source: limit.SourceAuthority, Cause: limit.CauseLimit, Reset: retry, Retry: retry,
	}
}

// never is the denial of what can never be admitted; reset is -1 for a bucket.
func never(reset int64) limit.Verdict {
	return limit.Verdict{
		Outcome: limit.Deny, Source: limit.SourceAuthority, Cause: limit.CauseTooLarge, Reset: reset, Retry: -1,
	}
}

func class(c limit.Class) limit.Verdict { return limit.Verdict{Class: c} }

var notEvaluated = limit.Verdict{Outcome: limit.NotEvaluated}

// want debits one request and asserts its verdicts.
func (l *lab) want(checks []limit.Check, want ...limit.Verdict) {
	l.Helper()
	l.wantAsk(&limit.Ask{Checks: checks}, forever, want...)
}

func (l *lab) wantAsk(a *limit.Ask, notAfter int64, want ...limit.Verdict) {
	l.Helper()
	l.batch(l.now, timed{a, notAfter})
	for i, got := range verdicts(a) {
		if got != want[i] {
			l.Errorf("check %d (%v of %d): verdict %+v, want %+v", i, a.Checks[i].Kind, a.Checks[i].Cost, got, want[i])
		}
	}
}

// one is a request of a single check.
func one(c limit.Check) []limit.Check { return []limit.Check{c} }

// windowState and bucketState are stored states, without a policy version.

func windowState(used, end, length int64) limit.State {
	return limit.State{Algorithm: limit.FixedWindow, Used: used, End: end, Length: length}
}

func bucketState(level, remainder, updated int64) limit.State {
	return limit.State{Algorithm: limit.TokenBucket, Used: level, Remainder: remainder, Updated: updated}
}

func atVersion(v uint64, s limit.State) limit.State {
	s.Version = v
	return s
}
