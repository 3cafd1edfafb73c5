package limit_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
)

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
