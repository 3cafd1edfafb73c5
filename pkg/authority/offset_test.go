package authority

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Semantics S24: a lower bound of store clock − local monotonic clock.

func TestOffset(t *testing.T) {
	const ms, s, day = time.Millisecond, time.Second, 24 * time.Hour
	type reading struct {
		store          int64 // what TIME said, in ms
		sent, received time.Duration
	}
	for _, c := range []struct {
		name     string
		readings []reading
		at       time.Duration
		want     int64
	}{
		{"one reading errs by the way back", []reading{{5_000, 10 * ms, 14 * ms}}, 20 * ms, 4_986},
		{"a reading is rounded down", []reading{{5_000, 10 * ms, 14*ms + 1}}, 20 * ms, 4_985},
		{"the largest counts", []reading{{5_000, 10 * ms, 14 * ms}, {6_000, 1_010 * ms, 1_011 * ms}, {7_000, 2_010 * ms, 2_019 * ms}}, 3 * s, 4_989},
		{"a step forward counts at once", []reading{{5_000, 10 * ms, 11 * ms}, {3_605_000, 12 * ms, 13 * ms}}, 20 * ms, 3_604_987},
		{"a step back replaces it", []reading{{5_000, 10 * ms, 11 * ms}, {4_000, 1_010 * ms, 1_012 * ms}}, 2 * s, 2_988},
		{"another node with a clock behind replaces it", []reading{{5_000, 10 * ms, 11 * ms}, {4_990, 20 * ms, 25 * ms}}, 30 * ms, 4_965},
		{"a slow reply is no step back", []reading{{5_000, 10 * ms, 11 * ms}, {5_500, 20 * ms, 1_000 * ms}}, 2 * s, 4_989},
		{"a reading of 10 s counts in full", []reading{{5_000, 0, 1 * ms}}, 10*s + 1*ms, 4_999},
		{"an older one counts less 500 ppm of its age, and one", []reading{{5_000, 0, 1 * ms}}, 20*s + 1*ms, 4_999 - 10 - 1},
		{"the largest of the last 10 s survives the change of spans", []reading{
			{5_000, 0, 1 * ms}, {14_000, 9_000 * ms, 9_001 * ms}, {15_500, 10_001 * ms, 10_900 * ms},
		}, 11 * s, 4_999},
		{"what is older than a reading since is worth less than it", []reading{
			{5_000, 0, 1 * ms}, {45_000, 40_000 * ms, 40_005 * ms},
		}, 41 * s, 4_995},
		{"a year without a reading makes it small, never large", []reading{{5_000, 0, 1 * ms}}, 365*day + 1*ms, 4_999 - 365*86_400/2 - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o clockOffset
			for _, r := range c.readings {
				o.observe(r.store, r.sent, r.received)
			}
			got, known := o.estimate(c.at)
			if !known || got != c.want {
				t.Errorf("estimate(%v) = %d, %v, want %d, true", c.at, got, known, c.want)
			}
		})
	}
	var o clockOffset
	if _, known := o.estimate(time.Second); known {
		t.Error("an offset without a reading is known")
	}
}

// TestOffsetIsALowerBound reads a clock that runs up to 400 ppm fast or slow
// over a random network. A clock that is slow falls behind its reading by its
// drift until the next one, up to 10 s; nothing else may make the estimate more
// than the truth.
func TestOffsetIsALowerBound(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0)) //nolint:gosec // reproducible, not secret
	for range 200 {
		var o clockOffset
		drift := (rnd.Float64() - 0.5) * 800e-6
		store := func(local time.Duration) float64 { return 1e6 + local.Seconds()*1000*(1+drift) }
		now := time.Duration(0)
		for range 200 {
			now += time.Duration(rnd.ExpFloat64() * float64(3*time.Second))
			if estimate, known := o.estimate(now); known {
				truth := store(now) - now.Seconds()*1000
				if float64(estimate) > truth+10_000*max(0, -drift)+1e-6 {
					t.Fatalf("drift %v: estimate %d at %v, more than the truth %v", drift, estimate, now, truth)
				}
			}
			sent := now
			executed := sent + time.Duration(rnd.ExpFloat64()*float64(time.Millisecond))
			now = executed + time.Duration(rnd.ExpFloat64()*float64(time.Millisecond))
			o.observe(int64(store(executed)), sent, now)
		}
	}
}
