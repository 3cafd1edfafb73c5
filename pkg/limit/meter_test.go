package limit_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
)

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
