package limit_test

import (
	"flag"
	"fmt"

	"github.com/weir-rl/weir/pkg/limit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// t0 is the beginning of an hour. Tests count milliseconds from it.
const t0 = 1_800_000_000_000

const (
	second = 1_000
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
	year   = 365 * day
)

// window returns a fixed window as the policy compiler makes it.
func window(n, length int64) *limit.Params {
	p := &limit.Params{Algorithm: limit.FixedWindow, Limit: n, Window: length, Capacity: n, OverdrawCap: n}
	p.Rate(n, length)
	return p
}

// bucket returns a token bucket of n hits per length, with a burst and as much
// of overdraw.
func bucket(n, length, burst int64) *limit.Params {
	p := &limit.Params{Algorithm: limit.TokenBucket, Limit: n, Window: length, Capacity: burst, OverdrawCap: burst}
	p.Rate(n, length)
	return p
}

// of returns the rule with a policy version.
func of(version uint64, p *limit.Params) *limit.Params {
	q := *p
	q.Version = version
	return &q
}

// key returns one of some keys.
func key(name byte) limit.Key { return limit.Key{Digest: [16]byte{name}} }

// text is a verdict in short: "allow 9 60000" (remaining, reset), "deny 500"
// (retry), "never 60000" (reset), "skipped", "undecided", or a class.
func text(v limit.Verdict) string {
	switch {
	case v.Class != limit.ClassNone:
		return v.Class.String()
	case v.Outcome == limit.Undecided:
		return "undecided"
	case v.Outcome == limit.NotEvaluated:
		return "skipped"
	case v.Source != limit.SourceAuthority:
		return "source " + v.Source.String()
	case v.Outcome == limit.Allow && v.Cause == limit.CauseAllowed && v.Retry == 0:
		return fmt.Sprintf("allow %d %d", v.Remaining, v.Reset)
	case v.Outcome == limit.Deny && v.Cause == limit.CauseLimit && v.Remaining == 0 && v.Retry == v.Reset:
		return fmt.Sprintf("deny %d", v.Retry)
	case v.Outcome == limit.Deny && v.Cause == limit.CauseTooLarge && v.Remaining == 0 && v.Retry == -1:
		return fmt.Sprintf("never %d", v.Reset)
	}
	return fmt.Sprintf("%+v", v)
}

// store is an authority as simple as it gets: what is stored are bytes, and
// they are gone when their time is over.
type store struct {
	tb     tb
	values map[limit.Key]string
	expiry map[limit.Key]int64
}

// tb is what tests, fuzzed and rapid ones have in common.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
}

// newStore returns an empty store.
func newStore(tb tb) *store {
	return &store{tb: tb, values: map[limit.Key]string{}, expiry: map[limit.Key]int64{}}
}

// decide evaluates one request at now and keeps what it changed.
func (s *store) decide(now int64, a *limit.Ask) {
	s.tb.Helper()
	s.batch(now, a)
}

// batch evaluates requests one after the other on the same copies.
func (s *store) batch(now int64, asks ...*limit.Ask) {
	s.tb.Helper()
	for k, at := range s.expiry {
		if at <= now {
			delete(s.values, k)
			delete(s.expiry, k)
		}
	}
	slots := map[limit.Key]*limit.Slot{}
	for _, a := range asks {
		limit.Evaluate(a, now, now, func(c *limit.Check) *limit.Slot {
			slot := slots[c.Key]
			if slot == nil {
				slot = new(limit.Slot)
				if v, ok := s.values[c.Key]; ok {
					slot.Load([]byte(v))
				}
				slots[c.Key] = slot
			}
			return slot
		})
	}
	for k, slot := range slots {
		if slot.Dirty == nil {
			continue
		}
		if slot.State.Used == 0 {
			delete(s.values, k)
			delete(s.expiry, k)
			continue
		}
		ttl := slot.State.TTL(slot.Dirty, now)
		if ttl <= 0 {
			s.tb.Fatalf("TTL of %+v = %d, want more than 0", slot.State, ttl)
		}
		at := now + ttl
		if slot.OlderRule() {
			at = max(at, s.expiry[k])
		}
		s.values[k], s.expiry[k] = string(limit.AppendState(nil, &slot.State)), at
	}
}

// state returns what is stored of a key.
func (s *store) state(k limit.Key) limit.State {
	s.tb.Helper()
	v, ok := s.values[k]
	if !ok {
		return limit.State{}
	}
	st, form := limit.DecodeState([]byte(v))
	if form != limit.Known {
		s.tb.Fatalf("state of %x is %s", v, form)
	}
	return st
}

// take is one enforced check of one key.
func (s *store) take(now int64, p *limit.Params, cost int64) limit.Verdict {
	s.tb.Helper()
	a := &limit.Ask{Checks: []limit.Check{{Key: key('k'), Params: p, Cost: cost, Kind: limit.Enforced}}}
	s.decide(now, a)
	return a.Checks[0].Verdict
}

// refund gives back to the same key.
func (s *store) refund(now int64, p *limit.Params, cost int64) limit.Verdict {
	s.tb.Helper()
	a := &limit.Ask{Checks: []limit.Check{{Key: key('k'), Params: p, Cost: cost, Kind: limit.Refund}}}
	s.decide(now, a)
	return a.Checks[0].Verdict
}
