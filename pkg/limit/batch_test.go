package limit_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

// Requests of one batch see what earlier ones changed, and nothing of those
// that changed nothing: a denied request or a peek under a newer policy version
// must not turn what an older one meets (S3, S14).
func TestBatchSeesOnlyChanges(t *testing.T) {
	old, newer := of(1, window(10, minute)), of(2, bucket(2, second, 20))
	on := func(k byte, p *limit.Params, kind limit.Kind, cost int64) *limit.Ask {
		return ask([]check{{kind, k, p, cost, ""}})
	}
	one := func(p *limit.Params, kind limit.Kind, cost int64) *limit.Ask { return on('a', p, kind, cost) }
	for _, x := range []struct {
		name   string
		before string // of version 3 when it is a bucket
		asks   []*limit.Ask
		want   string
		after  limit.State
		ttl    int64
	}{
		{
			"a peek of a newer version", "a=4",
			[]*limit.Ask{one(newer, enforced, 0), one(old, enforced, 1)},
			"allow 16 2000 allow 5 60000",
			limit.State{Algorithm: 'F', Version: 1, Used: 5, End: t0 + minute, Length: minute},
			minute + second,
		},
		{
			"a denied request of a newer version", "a=4",
			[]*limit.Ask{one(newer, enforced, 17), one(old, enforced, 1)},
			"deny 500 allow 5 60000",
			limit.State{Algorithm: 'F', Version: 1, Used: 5, End: t0 + minute, Length: minute},
			minute + second,
		},
		{
			"an allowed request of a newer version", "a=4",
			[]*limit.Ask{one(newer, enforced, 1), one(old, enforced, 1)},
			"allow 15 2500 allow 4 36000",
			limit.State{Algorithm: 'B', Version: 2, Used: 6_000, Updated: t0},
			3*second + second,
		},
		{
			"an older one after it leaves the TTL to the newer", "",
			[]*limit.Ask{one(of(2, bucket(1, hour, 20)), enforced, 1), one(of(1, bucket(1, second, 20)), enforced, 1)},
			"allow 19 3600000 allow 18 2000",
			limit.State{Algorithm: 'B', Version: 2, Used: 2_000, Updated: t0},
			2*hour + second,
		},
		{
			"a newer one after it takes it", "",
			[]*limit.Ask{one(of(1, bucket(1, second, 20)), enforced, 1), one(of(2, bucket(1, hour, 20)), enforced, 1)},
			"allow 19 1000 allow 18 7200000",
			limit.State{Algorithm: 'B', Version: 2, Used: 2_000, Updated: t0},
			2*hour + second,
		},
		{
			"a state that was emptied is absent", "a=4",
			[]*limit.Ask{one(newer, refund, 4), one(old, enforced, 1)},
			"allow 20 0 allow 9 60000",
			limit.State{Algorithm: 'F', Version: 1, Used: 1, End: t0 + minute, Length: minute},
			minute + second,
		},
		{
			"of two older ones the last", "w=4000",
			[]*limit.Ask{on('w', of(1, bucket(1, hour, 20)), enforced, 1), on('w', of(2, bucket(1, minute, 20)), enforced, 1)},
			"allow 15 18000000 allow 14 360000",
			limit.State{Algorithm: 'B', Version: 3, Used: 6_000, Updated: t0},
			hour, // what it had
		},
		{
			"a denied request after an allowed one", "a=4",
			[]*limit.Ask{one(old, enforced, 1), one(old, enforced|overdraws, 7)},
			"allow 5 60000 deny 60000",
			limit.State{Algorithm: 'F', Version: 1, Used: 12, End: t0 + minute, Length: minute},
			minute + second,
		},
		{
			"emptied at the end: deleted", "a=4",
			[]*limit.Ask{one(old, enforced, 1), one(old, refund, 9)},
			"allow 5 60000 allow 10 60000",
			limit.State{},
			0,
		},
	} {
		s, version := newStore(t), uint64(0)
		if strings.HasPrefix(x.before, "w") {
			version = 3
		}
		s.plantOf(version, x.before)
		s.batch(t0, x.asks...)
		var got []string
		for _, a := range x.asks {
			got = append(got, verdicts(a)...)
		}
		if got := strings.Join(got, " "); got != x.want {
			t.Errorf("%s: %s, want %s", x.name, got, x.want)
		}
		k := x.asks[0].Checks[0].Key
		if diff := cmp.Diff(x.after, s.state(k)); diff != "" {
			t.Errorf("%s: stored (-want +got):\n%s", x.name, diff)
		}
		if at, want := s.expiry[k], t0+x.ttl; x.ttl > 0 && at != want {
			t.Errorf("%s: TTL %d, want %d", x.name, at-t0, x.ttl)
		}
	}
}

// S14: an older version's write says so, for the TTL it must not shorten.
func TestOlderRule(t *testing.T) {
	for _, x := range []struct {
		stored, rule uint64
		cost         int64
		want         bool
	}{{2, 1, 1, true}, {2, 2, 1, false}, {1, 2, 1, false}, {2, 1, 0, false}} {
		slot := limit.Slot{State: limit.State{Algorithm: 'B', Version: x.stored, Used: 1, Updated: t0}}
		a := ask([]check{{enforced, 'a', of(x.rule, bucket(2, second, 20)), x.cost, ""}})
		limit.Evaluate(a, t0, t0, func(*limit.Check) *limit.Slot { return &slot })
		if got := slot.OlderRule(); got != x.want {
			t.Errorf("state of version %d, rule of %d, cost %d: older = %v, want %v", x.stored, x.rule, x.cost, got, x.want)
		}
	}
}

// S14: what an older rule with a smaller bucket records never lowers the level
// that the newer rule allows.
func TestOlderRuleNeverLowersTheLevel(t *testing.T) {
	slot := limit.Slot{State: limit.State{Algorithm: 'B', Version: 2, Used: 500_000, Updated: t0}}
	a := ask([]check{{enforced | overdraws, 'a', of(1, bucket(1, second, 5)), 3, ""}})
	limit.Evaluate(a, t0, t0, func(*limit.Check) *limit.Slot { return &slot })
	if slot.State.Used != 500_000 || slot.Dirty != nil {
		t.Errorf("level %d, to be written: %v, want 500000 as before", slot.State.Used, slot.Dirty != nil)
	}
}
