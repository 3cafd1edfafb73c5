package limit_test

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
)

// The generators lean on small numbers, where requests meet their limits, and
// on the extremes, where arithmetic breaks.

func counts() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(1, 20),
		rapid.Int64Range(1, 20),
		rapid.Int64Range(1, limit.MaxCost),
		rapid.SampledFrom([]int64{1, math.MaxUint16, 1_000_000, 1_000_000_000, limit.MaxCost - 1, limit.MaxCost}),
	)
}

func lengths() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.SampledFrom([]int64{second, minute, hour, day, 7 * day, 30 * day, year, 1 << 47}),
		rapid.Map(rapid.Int64Range(1, 1_000), func(n int64) int64 { return n * second }),
		rapid.Map(rapid.Int64Range(1, 4_000), func(n int64) int64 { return n * year }),
	)
}

// rules are what a policy can compile.
func rules() *rapid.Generator[*limit.Params] {
	return rapid.Custom(func(t *rapid.T) *limit.Params {
		n, length := counts().Draw(t, "limit"), lengths().Draw(t, "window")
		if rapid.Bool().Draw(t, "fixed") {
			return window(n, length)
		}
		return buckets(n, length).Draw(t, "bucket")
	})
}

// buckets of a limit: those whose rate is exact, since others are load errors.
func buckets(n, length int64) *rapid.Generator[*limit.Params] {
	return rapid.Custom(func(t *rapid.T) *limit.Params {
		p := &limit.Params{Algorithm: limit.TokenBucket, Limit: n, Window: length}
		p.Capacity = rapid.OneOf(rapid.Just(n), counts()).Draw(t, "burst")
		p.OverdrawCap = rapid.OneOf(rapid.Just(p.Capacity), rapid.Just(int64(0)), counts()).Draw(t, "overdraw cap")
		for !p.Rate(n, length) {
			p.Capacity, p.OverdrawCap = max(1, p.Capacity/2), p.OverdrawCap/2
			if p.Capacity == 1 && p.OverdrawCap == 0 && !p.Rate(n, length) {
				p.Limit, p.Window = 1, second
				n, length = 1, second
			}
		}
		return p
	})
}

// costs are those that mean something beside the rule's budget.
func costs(p *limit.Params) *rapid.Generator[int64] {
	most := p.Budget()
	return rapid.OneOf(
		rapid.Int64Range(0, min(limit.MaxCost, most+most/4+1)),
		rapid.Int64Range(0, most/4+1),
		rapid.Int64Range(0, 3),
	)
}

// waits are those that mean something beside the time in which the rule's whole
// budget is new.
func waits(p *limit.Params) *rapid.Generator[int64] {
	whole := int64(latest)
	if q := up(product(p.MaxLevel(), p.Den), p.Num); q.IsInt64() {
		whole = min(whole, q.Int64())
	}
	if p.Algorithm == limit.FixedWindow {
		whole = min(whole, p.Window)
	}
	return rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, whole/8+1), rapid.Int64Range(0, whole+whole/4+1))
}

// latest is the last instant from which the end of the longest window still
// fits into a state.
const latest = 1<<47 - 1

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

func TestRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, length := rapid.OneOf(counts(), rapid.Just(int64(0))).Draw(t, "limit"), lengths().Draw(t, "window")
		p := &limit.Params{
			Capacity:    rapid.OneOf(rapid.Just(n), counts()).Draw(t, "burst"),
			OverdrawCap: rapid.OneOf(rapid.Just(n), rapid.Just(int64(0)), counts()).Draw(t, "overdraw cap"),
		}
		exact := p.Rate(n, length)
		if p.Num <= 0 || p.Den <= 0 {
			t.Fatalf("rate %d/%d, want both above 0", p.Num, p.Den)
		}
		if g := new(big.Int).GCD(nil, nil, big.NewInt(p.Num), big.NewInt(p.Den)); g.Cmp(big.NewInt(1)) != 0 {
			t.Errorf("rate %d/%d is not in lowest terms", p.Num, p.Den)
		}
		if got := product(p.MaxLevel()+1, p.Den); got.Cmp(big.NewInt(limit.Exact)) >= 0 {
			t.Errorf("(MaxLevel + 1) × Den = %d, want less than 2^53", got)
		}
		if n == 0 {
			if !exact {
				t.Errorf("the rate of a limit of 0 is not exact, and is never used")
			}
			return
		}
		got := big.NewRat(p.Num, p.Den)
		want := new(big.Rat).SetFrac(product(n, 1000), big.NewInt(length))
		if exact {
			if got.Cmp(want) != 0 {
				t.Errorf("rate %s, want %s", got, want)
			}
			return
		}
		if q := new(big.Int).Mul(want.Denom(), big.NewInt(p.MaxLevel()+1)); q.Cmp(big.NewInt(limit.Exact)) < 0 {
			t.Errorf("not exact, but (MaxLevel + 1) × %d = %d is below 2^53", want.Denom(), q)
		}
		step := big.NewRat(1, (limit.Exact-1)/(p.MaxLevel()+1))
		if diff := new(big.Rat).Sub(want, got); diff.Cmp(step) >= 0 || diff.Sign() < 0 && got.Cmp(step) != 0 {
			t.Errorf("rate %s, want %s less something below %s, and not less than that", got, want, step)
		}
	})
}

// Rates at the ends of what a policy can say. Those that are not exact are for
// rules that are no buckets, or load errors.
func TestRateAtTheExtremes(t *testing.T) {
	for _, x := range []struct {
		n, length int64
		exact     bool
		num, den  int64
	}{
		{1, second, true, 1, 1},
		{limit.MaxCost, second, true, limit.MaxCost, 1},
		{limit.MaxCost, hour, true, 286_331_153, 240},
		{100, hour, true, 1, 36},
		{1, year, true, 1, 31_536_000},
		{1_000_000, year, true, 125, 3_942},
		{limit.MaxCost, day, false, 26_048_181, 524},
		{limit.MaxCost, year, false, 142_729, 1_048},
		{1_000_000, 1 << 47, false, 31, 4_503_599},
	} {
		p := &limit.Params{Capacity: x.n, OverdrawCap: x.n}
		if exact := p.Rate(x.n, x.length); exact != x.exact || p.Num != x.num || p.Den != x.den {
			t.Errorf("Rate(%d, %d) = %v, %d/%d, want %v, %d/%d", x.n, x.length, exact, p.Num, p.Den, x.exact, x.num, x.den)
		}
	}
}

// meter is a second, slow opinion of a token bucket: the level as it really is,
// in 1/Den of a millitoken, in integers without end.
type meter struct {
	p       *limit.Params
	level   *big.Int
	updated int64
}

func newMeter(p *limit.Params, now int64) *meter { return &meter{p, new(big.Int), now} }

func (m *meter) at(now int64) *big.Int {
	if now > m.updated {
		m.level.Sub(m.level, product(now-m.updated, m.p.Num))
		if m.level.Sign() < 0 {
			m.level.SetInt64(0)
		}
		m.updated = now
	}
	return m.level
}

func (m *meter) tokens(n int64) *big.Int {
	return new(big.Int).Mul(product(n, 1000), big.NewInt(m.p.Den))
}

func (m *meter) fits(cost int64) bool {
	return new(big.Int).Add(m.level, m.tokens(cost)).Cmp(m.tokens(m.p.Capacity)) <= 0
}

// A bucket does what exact arithmetic does, whatever the numbers: no rounding,
// no overflow, no time lost between two millitokens (S13, S18).
func TestBucketIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := buckets(counts().Draw(t, "limit"), lengths().Draw(t, "window")).Draw(t, "rule")
		s, now := newStore(t), int64(t0)
		m := newMeter(p, now)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += waits(p).Draw(t, "wait")
			if now > latest {
				return
			}
			cost := costs(p).Draw(t, "cost")
			kind := rapid.SampledFrom([]limit.Kind{limit.Enforced, limit.Enforced, limit.Refund, limit.Shadow}).Draw(t, "kind")
			overdraw := rapid.Bool().Draw(t, "overdraw")
			a := &limit.Ask{Checks: []limit.Check{{Key: key('k'), Params: p, Cost: cost, Kind: kind, Overdraw: overdraw}}}
			s.decide(now, a)
			v := a.Checks[0].Verdict

			level := m.at(now)
			fits := m.fits(cost)
			switch {
			case kind == limit.Refund:
				level.Sub(level, m.tokens(cost))
				if level.Sign() < 0 {
					level.SetInt64(0)
				}
				fits = true
			case fits:
				level.Add(level, m.tokens(cost))
			case overdraw:
				debt := m.tokens(p.Capacity + p.OverdrawCap)
				// The cap is on the stored level, which is the real one rounded up.
				sum := new(big.Int).Add(level, m.tokens(cost))
				if up(sum, p.Den).Cmp(up(debt, p.Den)) <= 0 {
					level.Set(sum)
				} else if debt.Sub(debt, frac(level, p.Den)); debt.Cmp(level) > 0 {
					level.Set(debt)
				}
			}
			if got := v.Outcome == limit.Allow; got != fits {
				t.Fatalf("%s of %d: %s, want allow = %v", kind, cost, text(v), fits)
			}
			st := s.state(key('k'))
			got := product(st.Used, p.Den)
			if got.Sub(got, big.NewInt(st.Remainder)); st.Updated != now && st.Used > 0 {
				// Not written: it leaks when it is read next.
				got.Sub(got, product(now-st.Updated, p.Num))
				if got.Sign() < 0 {
					got.SetInt64(0)
				}
			}
			if got.Cmp(level) != 0 {
				t.Fatalf("%s of %d: level %d, want %d; %+v", kind, cost, got, level, st)
			}
			if st.Used < 0 || st.Used > p.MaxLevel() || st.Remainder < 0 || st.Remainder >= p.Den {
				t.Fatalf("%+v is out of bounds: level <= %d, remainder < %d", st, p.MaxLevel(), p.Den)
			}
			if fits {
				left := new(big.Int).Sub(m.tokens(p.Capacity), level)
				left.Div(left, m.tokens(1))
				if left.Sign() < 0 {
					left.SetInt64(0)
				}
				if left.Int64() != v.Remaining {
					t.Fatalf("%s of %d: remaining %d, want %d", kind, cost, v.Remaining, left)
				}
				if want := ceil(level, p.Num); v.Reset != want {
					t.Fatalf("%s of %d: reset %d, want %d", kind, cost, v.Reset, want)
				}
			}
		}
	})
}

// up is a level in whole millitokens, rounded up.
func up(level *big.Int, den int64) *big.Int {
	q := new(big.Int).Add(level, big.NewInt(den-1))
	return q.Div(q, big.NewInt(den))
}

// frac is what a level is less than whole millitokens.
func frac(level *big.Int, den int64) *big.Int {
	q := up(level, den)
	return q.Mul(q, big.NewInt(den)).Sub(q, level)
}

func ceil(level *big.Int, num int64) int64 { return up(level, num).Int64() }

// event is what a history admitted (or gave back, negative) at an instant.
type event struct{ at, hits int64 }

// history runs random checks without overdraw on one key, with a clock that
// moves as wait says.
func history(t *rapid.T, p *limit.Params, wait func(now int64) int64) []event {
	s, now := newStore(t), int64(t0)
	var all []event
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		now += wait(now)
		cost := costs(p).Draw(t, "cost")
		if rapid.IntRange(0, 3).Draw(t, "refund") == 0 {
			before := s.refund(now, p, 0).Remaining
			// Without overdraw all that was given back shows, but for parts of a token.
			if after := s.refund(now, p, cost).Remaining; after > before {
				all = append(all, event{now, -min(cost, after-before)})
			}
			continue
		}
		if v := s.take(now, p, cost); v.Outcome == limit.Allow {
			all = append(all, event{now, cost})
		}
	}
	return all
}

// S17, F01: what any span of time admits, less what was given back in it.
func TestAdmittedInAnySpan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rules().Draw(t, "rule")
		events := history(t, p, func(now int64) int64 {
			return min(waits(p).Draw(t, "wait"), latest-now)
		})
		for i := range events {
			net := int64(0)
			for j := i; j < len(events); j++ {
				net += events[j].hits
				span := events[j].at - events[i].at
				if p.Algorithm == limit.FixedWindow {
					windows := events[j].at/p.Window - events[i].at/p.Window + 1
					if big.NewInt(net).Cmp(product(p.Limit, windows)) > 0 {
						t.Fatalf("%d in %d windows of %d, events %v", net, windows, p.Limit, events[i:j+1])
					}
					continue
				}
				// net × 1000 × Den <= capacity × 1000 × Den + Num × span
				m := newMeter(p, 0)
				if bound := product(p.Num, span); m.tokens(net).Cmp(bound.Add(bound, m.tokens(p.Capacity))) > 0 {
					t.Fatalf("%d in %d ms of a bucket of %d at %d/%d, events %v", net, span, p.Capacity, p.Num, p.Den, events[i:j+1])
				}
			}
		}
	})
}

// S15, I4: whatever the store's clock does, only its steps forward mint.
func TestOnlyStepsForwardMint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rules().Draw(t, "rule")
		forward, ends := int64(0), int64(1)
		events := history(t, p, func(now int64) int64 {
			d := waits(p).Draw(t, "wait")
			if rapid.IntRange(0, 3).Draw(t, "back") == 0 {
				return -min(d, now)
			}
			d = min(d, latest-now)
			forward += d
			ends += (now+d)/p.Window - now/p.Window
			return d
		})
		net := int64(0)
		for _, e := range events {
			net += e.hits
		}
		if p.Algorithm == limit.FixedWindow {
			if big.NewInt(net).Cmp(product(p.Limit, ends)) > 0 {
				t.Fatalf("%d in %d windows of %d", net, ends, p.Limit)
			}
			return
		}
		m := newMeter(p, 0)
		if bound := product(p.Num, forward); m.tokens(net).Cmp(bound.Add(bound, m.tokens(p.Capacity))) > 0 {
			t.Fatalf("%d in %d ms of a bucket of %d at %d/%d", net, forward, p.Capacity, p.Num, p.Den)
		}
	})
}

// S17: with overdraw the admitted requests are as stated, and cost by at most
// the last one's more. A window records nothing once it is over.
func TestOverdrawExceedsByTheLastCostAtMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rules().Draw(t, "rule")
		s := newStore(t)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			before := s.state(key('k')).Used
			cost := costs(p).Draw(t, "cost")
			a := ask([]check{{enforced | overdraws, 'k', p, cost, ""}})
			s.decide(t0, a)
			after := s.state(key('k')).Used
			switch {
			case a.Checks[0].Verdict.Outcome == limit.Allow:
			case after < before:
				t.Fatalf("overdraw of %d lowered %d to %d", cost, before, after)
			case p.Algorithm == limit.TokenBucket && after > p.MaxLevel():
				t.Fatalf("overdraw of %d raised the level to %d of %d", cost, after, p.MaxLevel())
			case p.Algorithm == limit.FixedWindow && after != before && (before > p.Limit || after != before+cost):
				t.Fatalf("overdraw of %d raised %d to %d of %d", cost, before, after, p.Limit)
			}
		}
	})
}

// planted stores random states of the keys a…d: of any form, version and age.
func planted(t *rapid.T, s *store) {
	for _, k := range []byte("abcd") {
		st := limit.State{
			Version: rapid.Uint64Range(0, 3).Draw(t, "version"),
			Used:    rapid.OneOf(rapid.Int64Range(1, 40), rapid.Int64Range(1, 40_000), rapid.Int64Range(1, limit.Exact-1)).Draw(t, "used"),
		}
		switch rapid.IntRange(0, 2).Draw(t, "form") {
		case 0:
			continue
		case 1:
			st.Algorithm, st.Length = limit.FixedWindow, lengths().Draw(t, "length")
			st.End = t0 + rapid.Int64Range(-minute, hour).Draw(t, "end")
		case 2:
			st.Algorithm, st.Updated = limit.TokenBucket, t0+rapid.Int64Range(-hour, minute).Draw(t, "updated")
			st.Remainder = rapid.Int64Range(0, 100).Draw(t, "remainder")
		}
		s.values[key(k)], s.expiry[key(k)] = string(limit.AppendState(nil, &st)), t0+hour
	}
}

// asks makes a random request of the keys a…d, each with its own rule.
func asks(t *rapid.T, of map[byte]*limit.Params) *limit.Ask {
	a := &limit.Ask{Denied: rapid.IntRange(0, 9).Draw(t, "denied") == 0}
	for range rapid.IntRange(1, 6).Draw(t, "checks") {
		k := rapid.SampledFrom([]byte("abcd")).Draw(t, "key")
		a.Checks = append(a.Checks, limit.Check{
			Key: key(k), Params: of[k], Cost: costs(of[k]).Draw(t, "cost"),
			Kind:     rapid.SampledFrom([]limit.Kind{refund, enforced, enforced, quota, quota, shadow}).Draw(t, "kind"),
			Overdraw: rapid.IntRange(0, 3).Draw(t, "overdraw") == 0,
		})
	}
	slices.SortStableFunc(a.Checks, func(x, y limit.Check) int { return int(x.Kind) - int(y.Kind) })
	return a
}

// denied says what the verdicts make of the request (S3, S7).
func denied(a *limit.Ask) bool {
	bad, quotas, full := a.Denied, 0, 0
	for i := range a.Checks {
		over := a.Checks[i].Verdict.Outcome == limit.Deny
		switch a.Checks[i].Kind {
		case limit.Enforced:
			bad = bad || over
		case limit.Quota:
			quotas++
			if over {
				full++
			}
		}
	}
	return bad || quotas > 0 && full == quotas
}

// I2: a denied request changes nothing but what refunds and overdrawing denials
// change, an allowed one takes exactly what was allowed, and neither touches a
// key that it only looked at.
func TestOnlyAllowedRequestsTake(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, of := newStore(t), map[byte]*limit.Params{}
		for _, k := range []byte("abcd") {
			of[k] = rules().Draw(t, "rule")
			of[k].Version = rapid.Uint64Range(0, 3).Draw(t, "version")
		}
		planted(t, s)
		a := asks(t, of)
		before := map[limit.Key]string{}
		for k, v := range s.values {
			before[k] = v
		}
		s.decide(t0, a)
		no := denied(a)
		for _, name := range []byte("abcd") {
			k := key(name)
			changes := false
			for i := range a.Checks {
				c := &a.Checks[i]
				if c.Key != k {
					continue
				}
				switch over := c.Verdict.Outcome == limit.Deny; {
				case c.Kind == limit.Refund:
					changes = changes || c.Cost > 0
				case over:
					changes = changes || c.Overdraw && c.Cost > 0
				default:
					changes = changes || !no && c.Cost > 0
				}
				if no && c.Kind == limit.Shadow && c.Verdict.Outcome != limit.NotEvaluated {
					t.Fatalf("a shadow check of a denied request: %s", text(c.Verdict))
				}
				if c.Kind != limit.Shadow && c.Verdict.Outcome != limit.Allow && c.Verdict.Outcome != limit.Deny {
					t.Fatalf("a %s check: %s", c.Kind, text(c.Verdict))
				}
				if c.Kind == limit.Refund && c.Verdict.Outcome != limit.Allow {
					t.Fatalf("a refund: %s", text(c.Verdict))
				}
			}
			if !changes && s.values[k] != before[k] {
				t.Fatalf("key %c: %x became %x, by %v of %+v", name, before[k], s.values[k], verdicts(a), a.Checks)
			}
		}
	})
}

// S18: remaining is the largest cost that fits; retry is the smallest wait
// after which a cost fits; after reset the whole budget is there. And what fits
// now fits later, and with a smaller cost.
func TestNumbersMeanWhatTheySay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, p, now := newStore(t), rules().Draw(t, "rule"), int64(t0)
		for range rapid.IntRange(0, 10).Draw(t, "steps") {
			now += min(waits(p).Draw(t, "wait"), latest-now)
			a := ask([]check{{enforced, 'k', p, costs(p).Draw(t, "cost"), ""}})
			a.Checks[0].Overdraw = rapid.Bool().Draw(t, "overdraw")
			s.decide(now, a)
		}
		st := s.state(key('k'))
		fits := func(now, cost int64) bool {
			_, v := limit.Apply(st, p, now, cost)
			return v.Outcome == limit.Allow
		}
		peekSt, peek := limit.Apply(st, p, now, 0)
		if diff := cmp.Diff(st, peekSt); diff != "" {
			t.Fatalf("a peek changed the state:\n%s", diff)
		}
		if peek.Outcome == limit.Allow {
			if !fits(now, peek.Remaining) || fits(now, peek.Remaining+1) {
				t.Fatalf("remaining is %d, but %d fits: %v, %d fits: %v", peek.Remaining,
					peek.Remaining, fits(now, peek.Remaining), peek.Remaining+1, fits(now, peek.Remaining+1))
			}
			if !fits(now+peek.Reset, p.Budget()) {
				t.Fatalf("after the reset of %d the budget is not whole", peek.Reset)
			}
		}
		cost := costs(p).Draw(t, "cost")
		_, v := limit.Apply(st, p, now, cost)
		switch {
		case v.Cause == limit.CauseTooLarge:
			if cost <= p.Budget() {
				t.Fatalf("%d of %d: too large", cost, p.Budget())
			}
		case v.Outcome == limit.Deny:
			if v.Retry < 1 || !fits(now+v.Retry, cost) || fits(now+v.Retry-1, cost) {
				t.Fatalf("retry of %d after %d: fits %v, one before: %v; %+v", cost, v.Retry, fits(now+v.Retry, cost), fits(now+v.Retry-1, cost), st)
			}
		default:
			later := now + waits(p).Draw(t, "later")
			less := rapid.Int64Range(0, cost).Draw(t, "less")
			if !fits(later, cost) || !fits(now, less) {
				t.Fatalf("%d fits at %d, but at %d: %v; %d fits: %v", cost, now, later, fits(later, cost), less, fits(now, less))
			}
		}
	})
}

// S14: two sidecars on two policy versions share a key. Whatever their numbers,
// the older one never turns the form that the newer one gave, and never
// shortens the key's life.
func TestTwoVersionsNeverFlipAKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, newer := of(1, rules().Draw(t, "old")), of(2, rules().Draw(t, "new"))
		s, now := newStore(t), int64(t0)
		for range rapid.IntRange(2, 40).Draw(t, "steps") {
			p := rapid.SampledFrom([]*limit.Params{old, newer}).Draw(t, "version")
			now += min(waits(p).Draw(t, "wait"), latest-now)
			before, expiry := s.state(key('k')), s.expiry[key('k')]
			a := ask([]check{{rapid.SampledFrom([]limit.Kind{refund, enforced, enforced}).Draw(t, "kind"), 'k', p, costs(p).Draw(t, "cost"), ""}})
			a.Checks[0].Overdraw = rapid.Bool().Draw(t, "overdraw")
			s.decide(now, a)
			after := s.state(key('k'))
			gone := before.Used == 0 || expiry <= now || before.Algorithm == limit.FixedWindow && before.End <= now
			if gone || after.Used == 0 || p == newer {
				if p == newer && after.Used > 0 && !cmp.Equal(after, before) && (after.Version != 2 || after.Algorithm != newer.Algorithm) {
					t.Fatalf("the newer version left %+v", after)
				}
				continue
			}
			if after.Version < before.Version || after.Algorithm != before.Algorithm || before.Version == 2 && after.Length != before.Length {
				t.Fatalf("the older version made %+v of %+v", after, before)
			}
			if before.Version == 2 && s.expiry[key('k')] < expiry {
				t.Fatalf("the older version shortened the TTL by %d", expiry-s.expiry[key('k')])
			}
		}
	})
}

// S14: per switch of algorithm or numbers, at most one limit more than what the
// new rule admits by itself: what was used is carried, so the new rule admits no
// more than its budget less that at once.
func TestASwitchGivesNoFreshBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, limit.MaxCost).Draw(t, "limit")
		from, to := window(n, minute), window(n, minute)
		if rapid.Bool().Draw(t, "from bucket") {
			from = bucket(n, minute, n)
		}
		if rapid.Bool().Draw(t, "to bucket") {
			to = bucket(n, minute, n)
		}
		s, took := newStore(t), rapid.Int64Range(0, n).Draw(t, "took")
		s.take(t0, of(1, from), took)
		if v := s.take(t0, of(2, to), 0); v.Remaining != n-took {
			t.Fatalf("%d of %d used, remaining %d after the switch", took, n, v.Remaining)
		}
	})
}
