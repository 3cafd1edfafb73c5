package limit_test

import (
	"math"
	"math/big"
	"slices"

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
