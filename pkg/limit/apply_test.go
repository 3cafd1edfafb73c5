package limit_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

// step is one check in the life of a key, at milliseconds after t0.
type step struct {
	at   int64
	cost int64
	want string
}

// run applies the steps one after the other to an absent state and returns what
// is left.
func run(t *testing.T, p *limit.Params, steps []step) limit.State {
	t.Helper()
	var s limit.State
	for i, x := range steps {
		var v limit.Verdict
		if s, v = limit.Apply(s, p, t0+x.at, x.cost); text(v) != x.want {
			t.Errorf("step %d: Apply at %d of %d = %s, want %s; %+v", i, x.at, x.cost, text(v), x.want, s)
		}
	}
	return s
}

func TestFixedWindow(t *testing.T) {
	run(t, window(10, minute), []step{
		{0, 4, "allow 6 60000"},
		{1, 6, "allow 0 59999"},
		{1, 1, "deny 59999"},
		{59_999, 1, "deny 1"},
		{60_000, 1, "allow 9 60000"},
		{60_001, 10, "deny 59999"}, // 9 are left
		{60_001, 9, "allow 0 59999"},
		{180_500, 10, "allow 0 59500"},
	})
}

// F01: what a fixed window gives away, and where it is stated. Twice the limit
// within 200 ms, and never more.
func TestFixedWindowAdmitsTwiceItsLimitAroundABoundary(t *testing.T) {
	run(t, window(20, 10*second), []step{
		{9_900, 20, "allow 0 100"},
		{9_999, 1, "deny 1"},
		{10_000, 0, "allow 20 10000"},
		{10_100, 20, "allow 0 9900"},
		{10_100, 1, "deny 9900"},
	})
}

// S16: windows begin at multiples of their length since the epoch, which was a
// Thursday.
func TestFixedWindowsBeginAtMultiplesOfTheirLength(t *testing.T) {
	const week = 7 * day
	for _, x := range []struct {
		name   string
		length int64
		now    int64
		reset  int64
	}{
		{"hour", hour, t0, hour},
		{"day", day, t0, 16 * hour}, // t0 is 08:00 UTC
		{"week from Thursday", week, 1_800_489_600_000 - 1, 1},
		{"week on Thursday", week, 1_800_489_600_000, week},
		{"two weeks", 2 * week, 1_800_489_600_000, 2*week - 1_800_489_600_000%(2*week)},
		{"the epoch", minute, 0, minute},
	} {
		_, v := limit.Apply(limit.State{}, window(5, x.length), x.now, 1)
		if v.Reset != x.reset {
			t.Errorf("%s: reset at %d = %d, want %d", x.name, x.now, v.Reset, x.reset)
		}
	}
}

func TestTokenBucket(t *testing.T) {
	run(t, bucket(2, second, 20), []step{
		{0, 20, "allow 0 10000"},
		{0, 1, "deny 500"},
		{499, 1, "deny 1"},
		{500, 1, "allow 0 10000"},
		{1_250, 1, "allow 0 9750"}, // half a token is left, and is not shown
		{1_250, 2, "deny 750"},
		{1_999, 2, "deny 1"},
		{2_000, 2, "allow 0 10000"},
		{5_000, 3, "allow 3 8500"},
		{60_000, 20, "allow 0 10000"},
	})
}

// F07: capacity 20, 2 a second; two requests of 10 race for 15 tokens. The
// loser waits for the deficit of 5 at 2 a second, which an answer rounds to 3 s.
func TestRetryIsTheDeficitOverTheRate(t *testing.T) {
	run(t, bucket(2, second, 20), []step{
		{0, 5, "allow 15 2500"},
		{0, 10, "allow 5 7500"},
		{0, 10, "deny 2500"},
		{2_499, 10, "deny 1"},
		{2_500, 10, "allow 0 10000"},
	})
}

// S18: a cost above the capacity never fits, so there is no retry; a window
// still says when it ends.
func TestTooLargeHasNoRetry(t *testing.T) {
	run(t, window(10, minute), []step{{0, 11, "never 60000"}, {1, 10, "allow 0 59999"}, {1, 11, "never 59999"}})
	run(t, bucket(2, second, 20), []step{{0, 21, "never -1"}, {1, 20, "allow 0 10000"}, {1, 21, "never -1"}})
}

// S6: a peek denies exactly when more is used than the limit, and writes
// nothing.
func TestPeek(t *testing.T) {
	for _, x := range []struct {
		name string
		p    *limit.Params
		used limit.State
		want string
	}{
		{"window, absent", window(10, minute), limit.State{}, "allow 10 60000"},
		{"window, full", window(10, minute), limit.State{Algorithm: 'F', Used: 10, End: t0 + minute, Length: minute}, "allow 0 60000"},
		{"window, over", window(10, minute), limit.State{Algorithm: 'F', Used: 11, End: t0 + minute, Length: minute}, "deny 60000"},
		{"bucket, absent", bucket(2, second, 20), limit.State{}, "allow 20 0"},
		{"bucket, empty", bucket(2, second, 20), limit.State{Algorithm: 'B', Used: 20_000, Updated: t0}, "allow 0 10000"},
		{"bucket, in debt", bucket(2, second, 20), limit.State{Algorithm: 'B', Used: 20_001, Updated: t0}, "deny 1"},
		{"bucket, out of debt by now", bucket(2, second, 20), limit.State{Algorithm: 'B', Used: 20_002, Updated: t0 - 1}, "allow 0 10000"},
	} {
		s, v := limit.Apply(x.used, x.p, t0, 0)
		if text(v) != x.want {
			t.Errorf("%s: a peek = %s, want %s", x.name, text(v), x.want)
		}
		if diff := cmp.Diff(x.used, s); diff != "" {
			t.Errorf("%s: a peek changed the state (-before +after):\n%s", x.name, diff)
		}
	}
}

// A bucket of 100 an hour refills 1/36 of a millitoken a millisecond. Written
// in every millisecond, it must lose none of it.
func TestSlowBucketNeverStarves(t *testing.T) {
	s, p := newStore(t), bucket(100, hour, 100)
	if v := s.take(t0, p, 100); v.Outcome != limit.Allow {
		t.Fatalf("taking all = %s", text(v))
	}
	const oneToken = 36_000 // ms
	for ms := int64(1); ms < oneToken; ms++ {
		if v := s.take(t0+ms, p, 1); v.Outcome != limit.Deny || v.Retry != oneToken-ms {
			t.Fatalf("after %d ms: %s, want deny %d", ms, text(v), oneToken-ms)
		}
	}
	if v := s.take(t0+oneToken, p, 1); v.Outcome != limit.Allow {
		t.Fatalf("after %d ms: %s, want allow", oneToken, text(v))
	}
	// The same with a write in each millisecond: half a bucket, of which one
	// is given back and taken again all the time.
	s, used := newStore(t), int64(50)
	s.take(t0, p, used)
	for ms := int64(1); ms <= 3*oneToken; ms++ {
		s.refund(t0+ms, p, 1)
		s.take(t0+ms, p, 1)
	}
	if got, want := s.state(key('k')), (limit.State{Algorithm: 'B', Used: (used - 3) * 1000, Updated: t0 + 3*oneToken}); !cmp.Equal(got, want) {
		t.Errorf("after the time of three tokens: %+v, want %+v", got, want)
	}
}

// S15, F06: the store's clock goes back by an hour. The bucket mints nothing
// and is not frozen for longer than the step.
func TestBucketWhenTheClockGoesBack(t *testing.T) {
	run(t, bucket(2, second, 20), []step{
		{hour, 20, "allow 0 10000"},
		{0, 1, "deny 3600500"},
		{minute, 1, "deny 3540500"},
		{hour, 1, "deny 500"},
		{hour + 500, 1, "allow 0 10000"},
	})
	// What is left can be taken meanwhile, and refills when the clock is there again.
	s := run(t, bucket(2, second, 20), []step{
		{hour, 10, "allow 10 5000"},
		{0, 10, "allow 0 3610000"},
		{0, 1, "deny 3600500"},
	})
	if s.Updated != t0+hour {
		t.Errorf("updated moved back to %d", s.Updated-t0)
	}
}

// S15: a step forward mints at most rate × step.
func TestBucketWhenTheClockGoesForward(t *testing.T) {
	run(t, bucket(2, second, 20), []step{
		{0, 20, "allow 0 10000"},
		{3_000, 7, "deny 500"},
		{3_000, 6, "allow 0 10000"},
		{day, 20, "allow 0 10000"},
	})
}

// S15: a window that ends later than now's window stays in force until the
// clock passes its end.
func TestWindowWhenTheClockGoesBack(t *testing.T) {
	run(t, window(10, minute), []step{
		{minute, 6, "allow 4 60000"},
		{59_000, 4, "allow 0 61000"},
		{0, 1, "deny 120000"},
		{minute, 1, "deny 60000"},
		{2*minute - 1, 1, "deny 1"},
		{2 * minute, 1, "allow 9 60000"},
	})
}

// S13, S21: what counts nothing is as good as absent, whatever else it says.
func TestZeroStateEqualsAbsent(t *testing.T) {
	for _, s := range []limit.State{
		{Algorithm: 'F', Version: 9, End: t0 + day, Length: day},
		{Algorithm: 'F', Used: 10, End: t0, Length: minute},
		{Algorithm: 'F', Used: 10, End: 0, Length: minute},
		{Algorithm: 'F', Version: 9, Used: 10, End: t0 - 1, Length: day},
		{Algorithm: 'B', Version: 9, Remainder: 3, Updated: t0 + day},
		{Algorithm: 'B'},
	} {
		for _, p := range []*limit.Params{window(10, minute), bucket(2, second, 20), of(3, window(7, hour))} {
			for _, cost := range []int64{0, 1, 7, 100} {
				got, gotV := limit.Apply(s, p, t0, cost)
				want, wantV := limit.Apply(limit.State{}, p, t0, cost)
				if want.Algorithm == 0 {
					want = s // unchanged
				}
				if diff := cmp.Diff(wantV, gotV); diff != "" {
					t.Errorf("%+v, cost %d (-absent +zero):\n%s", s, cost, diff)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%+v, cost %d (-absent +zero):\n%s", s, cost, diff)
				}
			}
		}
	}
}

// S11: a refund gives back at most what was used; it never makes credit, debt
// or state, and a key that is full again is deleted.
func TestRefund(t *testing.T) {
	for _, x := range []struct {
		name       string
		p          *limit.Params
		take, back int64
		after      int64 // ms between
		want       string
		used       int64
	}{
		{"window", window(10, minute), 6, 2, 0, "allow 6 60000", 4},
		{"window, all", window(10, minute), 6, 6, 0, "allow 10 60000", 0},
		{"window, more than used", window(10, minute), 6, 7, 0, "allow 10 60000", 0},
		{"window, the most", window(10, minute), 6, limit.MaxCost, 0, "allow 10 60000", 0},
		{"window that has passed", window(10, minute), 6, 2, minute + second, "allow 10 59000", 0},
		{"not trusted: a cost of 0", window(10, minute), 6, 0, 0, "allow 4 60000", 6},
		{"bucket", bucket(2, second, 20), 6, 2, 0, "allow 16 2000", 4_000},
		{"bucket, some of it leaked", bucket(2, second, 20), 6, 2, 1_250, "allow 18 750", 1_500},
		{"bucket, more than is left", bucket(2, second, 20), 6, 2, 2_500, "allow 20 0", 0},
		{"bucket, nothing is left", bucket(2, second, 20), 6, 2, hour, "allow 20 0", 0},
		{"absent", window(10, minute), 0, 5, 0, "allow 10 60000", 0},
		{"absent bucket", bucket(2, second, 20), 0, 5, 0, "allow 20 0", 0},
	} {
		s := newStore(t)
		s.take(t0, x.p, x.take)
		if v := s.refund(t0+x.after, x.p, x.back); text(v) != x.want {
			t.Errorf("%s: refund = %s, want %s", x.name, text(v), x.want)
		}
		if got := s.state(key('k')).Used; got != x.used {
			t.Errorf("%s: used %d, want %d", x.name, got, x.used)
		}
		if _, ok := s.values[key('k')]; ok != (x.used > 0) {
			t.Errorf("%s: there is a key: %v", x.name, ok)
		}
	}
}

// S21: a state lives until it equals an absent one, and a second.
func TestTTL(t *testing.T) {
	for _, x := range []struct {
		name string
		p    *limit.Params
		s    limit.State
		want int64
	}{
		{"window", window(10, minute), limit.State{Algorithm: 'F', Used: 1, End: t0 + 7, Length: minute}, 7 + second},
		{"bucket", bucket(2, second, 20), limit.State{Algorithm: 'B', Used: 20_000, Updated: t0}, 10*second + second},
		{"bucket in debt", bucket(2, second, 20), limit.State{Algorithm: 'B', Used: 40_000, Updated: t0}, 20*second + second},
		{"a bucket's last millitoken", bucket(2, second, 20), limit.State{Algorithm: 'B', Used: 1, Updated: t0}, 1 + second},
		{"its remainder counts", bucket(100, hour, 100), limit.State{Algorithm: 'B', Used: 1, Remainder: 35, Updated: t0}, 1 + second},
		{"one of another denominator does not", bucket(100, hour, 100), limit.State{Algorithm: 'B', Used: 1, Remainder: 36, Updated: t0}, 36 + second},
		{"bucket of the future", bucket(2, second, 20), limit.State{Algorithm: 'B', Used: 2_000, Updated: t0 + hour}, hour + second + second},
	} {
		if got := x.s.TTL(x.p, t0); got != x.want {
			t.Errorf("%s: TTL = %d, want %d", x.name, got, x.want)
		}
	}
}

// S14, S13: what another form or other numbers make of a stored state, seen by a
// peek and by a cost.
func TestConversion(t *testing.T) {
	w, b := window(10, minute), bucket(2, second, 20)
	small := bucket(1, second, 5) // highest level: 10 tokens
	for _, x := range []struct {
		name   string
		before limit.State
		p      *limit.Params
		cost   int64
		want   string
		after  limit.State
	}{
		{
			"window to bucket",
			limit.State{Algorithm: 'F', Used: 7, End: t0 + 5, Length: minute},
			b, 3, "allow 10 5000",
			limit.State{Algorithm: 'B', Used: 10_000, Updated: t0},
		},
		{
			"window to a smaller bucket: cut at capacity and cap",
			limit.State{Algorithm: 'F', Used: 1_000, End: t0 + 5, Length: minute},
			small, 1, "deny 6000",
			limit.State{Algorithm: 'F', Used: 1_000, End: t0 + 5, Length: minute},
		},
		{
			"the largest count to bucket",
			limit.State{Algorithm: 'F', Used: limit.Exact - 1, End: t0 + 5, Length: minute},
			b, 0, "deny 10000",
			limit.State{Algorithm: 'F', Used: limit.Exact - 1, End: t0 + 5, Length: minute},
		},
		{
			"a window that has passed counts 0",
			limit.State{Algorithm: 'F', Used: 7, End: t0, Length: minute},
			b, 3, "allow 17 1500",
			limit.State{Algorithm: 'B', Used: 3_000, Updated: t0},
		},
		{
			"bucket to window, rounded up",
			limit.State{Algorithm: 'B', Used: 4_001, Updated: t0},
			w, 1, "allow 4 60000",
			limit.State{Algorithm: 'F', Used: 6, End: t0 + minute, Length: minute},
		},
		{
			// The window's own rate is 10 a minute: one hit in 6 s.
			"bucket to window, leaking until now",
			limit.State{Algorithm: 'B', Used: 5_000, Updated: t0 - 6*second},
			w, 1, "allow 5 60000",
			limit.State{Algorithm: 'F', Used: 5, End: t0 + minute, Length: minute},
		},
		{
			"bucket to window: a count is not cut",
			limit.State{Algorithm: 'B', Used: 500_000, Updated: t0},
			w, 0, "deny 60000",
			limit.State{Algorithm: 'B', Used: 500_000, Updated: t0},
		},
		{
			"another length carries the count into now's window",
			limit.State{Algorithm: 'F', Used: 7, End: t0 + 5*hour, Length: day},
			w, 1, "allow 2 60000",
			limit.State{Algorithm: 'F', Used: 8, End: t0 + minute, Length: minute},
		},
		{
			"other numbers keep what was used",
			limit.State{Algorithm: 'F', Used: 100, End: t0 + 5, Length: minute},
			w, 1, "deny 5",
			limit.State{Algorithm: 'F', Used: 100, End: t0 + 5, Length: minute},
		},
		{
			"more room at once",
			limit.State{Algorithm: 'F', Used: 10, End: t0 + 5, Length: minute},
			window(30, minute), 1, "allow 19 5",
			limit.State{Algorithm: 'F', Used: 11, End: t0 + 5, Length: minute},
		},
		{
			"a bucket's other numbers keep the level",
			limit.State{Algorithm: 'B', Used: 4_000, Updated: t0},
			small, 1, "allow 0 5000",
			limit.State{Algorithm: 'B', Used: 5_000, Updated: t0},
		},
		{
			"but for what is above its highest level",
			limit.State{Algorithm: 'B', Used: 500_000, Updated: t0},
			small, 1, "deny 6000",
			limit.State{Algorithm: 'B', Used: 500_000, Updated: t0},
		},
	} {
		s, v := limit.Apply(x.before, x.p, t0, x.cost)
		if text(v) != x.want {
			t.Errorf("%s: %s, want %s", x.name, text(v), x.want)
		}
		if diff := cmp.Diff(x.after, s); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.name, diff)
		}
	}
}

// S14: a count that was cut would let a refund make room that is not there.
func TestRefundAfterABucketBecameAWindow(t *testing.T) {
	s := newStore(t)
	s.take(t0, bucket(1_000, second, 1_000), 500)
	p := window(10, minute)
	if v := s.refund(t0, p, 100); text(v) != "allow 0 60000" {
		t.Errorf("refund = %s, want allow 0 60000", text(v))
	}
	if got := s.state(key('k')); got.Used != 400 || got.Algorithm != limit.FixedWindow {
		t.Errorf("after it: %+v, want a count of 400", got)
	}
}

// S14: an older policy version runs the stored algorithm with its own numbers
// and leaves form, length and version.
func TestOlderVersionLeavesTheForm(t *testing.T) {
	for _, x := range []struct {
		name   string
		before limit.State
		p      *limit.Params
		want   string
		after  limit.State
	}{
		{
			"a bucket's rule on a window",
			limit.State{Algorithm: 'F', Version: 2, Used: 3, End: t0 + 9, Length: hour},
			of(1, bucket(5, minute, 50)), "allow 1 9",
			limit.State{Algorithm: 'F', Version: 2, Used: 4, End: t0 + 9, Length: hour},
		},
		{
			"a window's rule on a bucket",
			limit.State{Algorithm: 'B', Version: 2, Used: 8_000, Updated: t0},
			of(1, window(10, minute)), "allow 1 54000",
			limit.State{Algorithm: 'B', Version: 2, Used: 9_000, Updated: t0},
		},
		{
			"a window of another length",
			limit.State{Algorithm: 'F', Version: 2, Used: 3, End: t0 + day, Length: day},
			of(1, window(10, minute)), "allow 6 86400000",
			limit.State{Algorithm: 'F', Version: 2, Used: 4, End: t0 + day, Length: day},
		},
		{
			"a smaller bucket keeps what is above its own",
			limit.State{Algorithm: 'B', Version: 2, Used: 500_000, Updated: t0 - 2*second},
			of(1, bucket(1, second, 5)), "deny 10000", // a hint: no longer than its own bucket lasts
			limit.State{Algorithm: 'B', Version: 2, Used: 500_000, Updated: t0 - 2*second},
		},
		{
			"the same version is not older",
			limit.State{Algorithm: 'F', Version: 2, Used: 3, End: t0 + 9, Length: hour},
			of(2, window(10, minute)), "allow 6 60000",
			limit.State{Algorithm: 'F', Version: 2, Used: 4, End: t0 + minute, Length: minute},
		},
		{
			"a newer one takes over",
			limit.State{Algorithm: 'F', Version: 2, Used: 3, End: t0 + 9, Length: hour},
			of(limit.MaxVersion, bucket(5, minute, 50)), "allow 46 48000",
			limit.State{Algorithm: 'B', Version: limit.MaxVersion, Used: 4_000, Updated: t0},
		},
	} {
		s, v := limit.Apply(x.before, x.p, t0, 1)
		if text(v) != x.want {
			t.Errorf("%s: %s, want %s", x.name, text(v), x.want)
		}
		if diff := cmp.Diff(x.after, s); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.name, diff)
		}
	}
}
