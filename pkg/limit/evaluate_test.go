package limit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

// check is one check of a table and the verdict that it wants.
type check struct {
	kind limit.Kind
	key  byte
	p    *limit.Params
	cost int64
	want string
}

const overdraws = 0x80 // stands beside a kind

const (
	refund   = limit.Refund
	enforced = limit.Enforced
	quota    = limit.Quota
	shadow   = limit.Shadow
)

func ask(checks []check) *limit.Ask {
	a := new(limit.Ask)
	for _, c := range checks {
		a.Checks = append(a.Checks, limit.Check{
			Kind: c.kind &^ overdraws, Overdraw: c.kind&overdraws != 0, Key: key(c.key), Params: c.p, Cost: c.cost,
		})
	}
	return a
}

func verdicts(a *limit.Ask) []string {
	var all []string
	for i := range a.Checks {
		all = append(all, text(a.Checks[i].Verdict))
	}
	return all
}

// used returns the letters of the keys that are stored, each with what is used.
func (s *store) used() string {
	var all []string
	for k := range s.values {
		all = append(all, fmt.Sprintf("%c=%d", k.Digest[0], s.state(k).Used))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// plant stores what is used of the keys: "a=4 b=20000". Letters from w on are
// buckets, the others windows of a minute.
func (s *store) plant(used string) { s.tb.Helper(); s.plantOf(0, used) }

// plantOf stores what is used of the keys under a policy version.
func (s *store) plantOf(version uint64, used string) {
	s.tb.Helper()
	for _, u := range strings.Fields(used) {
		var k byte
		var n int64
		if _, err := fmt.Sscanf(u, "%c=%d", &k, &n); err != nil {
			s.tb.Fatalf("plant %q: %v", u, err)
		}
		st := limit.State{Algorithm: limit.FixedWindow, Version: version, Used: n, End: t0 + minute, Length: minute}
		if k >= 'w' {
			st = limit.State{Algorithm: limit.TokenBucket, Version: version, Used: n, Updated: t0}
		}
		s.values[key(k)], s.expiry[key(k)] = string(limit.AppendState(nil, &st)), t0+hour
	}
}

// Windows (a…v) are of 10 a minute, buckets (w…z) of 2 a second and 20 at once.
func TestEvaluate(t *testing.T) {
	w, b := window(10, minute), bucket(2, second, 20)
	for _, x := range []struct {
		name   string
		before string
		denied bool
		checks []check
		after  string
	}{
		{"no checks", "", false, nil, ""},

		// S3: cumulatively, on one copy.
		{"all allow", "", false, []check{
			{enforced, 'a', w, 3, "allow 7 60000"},
			{enforced, 'b', w, 4, "allow 6 60000"},
			{enforced, 'w', b, 5, "allow 15 2500"},
		}, "a=3 b=4 w=5000"},
		{"two checks on one key see each other", "", false, []check{
			{enforced, 'a', w, 3, "allow 3 60000"},
			{enforced, 'a', w, 4, "allow 3 60000"},
		}, "a=7"},
		{"the second on one key has no room, and could have", "a=1", false, []check{
			{enforced, 'a', w, 5, "allow 9 60000"},
			{enforced, 'a', w, 5, "deny 60000"},
		}, "a=1"},
		{"together they never fit: too large", "", false, []check{
			{enforced, 'a', w, 6, "allow 10 60000"},
			{enforced, 'a', w, 5, "never 60000"},
		}, ""},
		{"the wait is for both", "w=5000", false, []check{
			{enforced, 'w', b, 8, "allow 15 2500"},
			{enforced, 'w', b, 8, "deny 500"},
		}, "w=5000"},
		{"together they never fit a bucket", "", false, []check{
			{enforced, 'w', b, 12, "allow 20 0"},
			{enforced, 'w', b, 9, "never -1"},
		}, ""},
		{"what the denied one did not take is there for the next", "", false, []check{
			{enforced, 'a', w, 6, "allow 10 60000"},
			{enforced, 'a', w, 6, "never 60000"},
			{enforced, 'a', w, 4, "allow 10 60000"},
		}, ""},

		// I2: a denied request takes nothing, and all of it is evaluated.
		{"one denies, none takes", "b=8", false, []check{
			{enforced, 'a', w, 3, "allow 10 60000"},
			{enforced, 'b', w, 3, "deny 60000"},
			{enforced, 'w', b, 5, "allow 20 0"},
			{enforced, 'c', w, 11, "never 60000"},
		}, "b=8"},
		{"denied elsewhere", "", true, []check{
			{enforced, 'a', w, 3, "allow 10 60000"},
			{quota, 'b', w, 3, "allow 10 60000"},
			{shadow, 'c', w, 3, "skipped"},
		}, ""},

		// S5: overdraw.
		{"a denying check with overdraw records its whole cost", "a=8", false, []check{
			{enforced | overdraws, 'a', w, 5, "deny 60000"},
		}, "a=13"},
		{"also above the capacity", "", false, []check{
			{enforced | overdraws, 'a', w, limit.MaxCost, "never 60000"},
		}, "a=4294967295"},
		{"also when others deny", "a=8 b=10", false, []check{
			{enforced | overdraws, 'a', w, 5, "deny 60000"},
			{enforced, 'b', w, 1, "deny 60000"},
		}, "a=13 b=10"},
		{"also when denied elsewhere", "a=8", true, []check{
			{enforced | overdraws, 'a', w, 5, "deny 60000"},
		}, "a=13"},
		{"nothing more once over the limit", "a=11", false, []check{
			{enforced | overdraws, 'a', w, 5, "deny 60000"},
		}, "a=11"},
		{"but at the limit", "a=10", false, []check{
			{enforced | overdraws, 'a', w, 5, "deny 60000"},
		}, "a=15"},
		{"an allowing check of a denied request never records", "b=10", false, []check{
			{enforced | overdraws, 'a', w, 5, "allow 10 60000"},
			{enforced, 'b', w, 1, "deny 60000"},
		}, "b=10"},
		{"nor beside a denying one on its key", "", false, []check{
			{enforced | overdraws, 'a', w, 6, "allow 4 60000"},
			{enforced | overdraws, 'a', w, 6, "never 60000"},
		}, "a=6"},
		{"two that overdraw one window: only until it is over", "a=5", false, []check{
			{enforced | overdraws, 'a', w, 6, "deny 60000"},
			{enforced | overdraws, 'a', w, 7, "deny 60000"},
		}, "a=11"},
		{"a bucket's debt ends at its cap", "w=10000", false, []check{
			{enforced | overdraws, 'w', b, 15, "deny 17500"}, // with the debt of both
			{enforced | overdraws, 'w', b, limit.MaxCost, "never -1"},
		}, "w=40000"},
		{"overdraw never lowers", "w=40000", false, []check{
			{enforced | overdraws, 'w', b, 1, "deny 10500"},
		}, "w=40000"},
		{"without it a denying check records nothing", "a=8 w=20000", false, []check{
			{enforced, 'a', w, 5, "deny 60000"},
			{enforced, 'w', b, 5, "deny 2500"},
		}, "a=8 w=20000"},

		// S6: peeks.
		{"a peek makes no state", "", false, []check{
			{enforced, 'a', w, 0, "allow 10 60000"},
			{enforced, 'w', b, 0, "allow 20 0"},
			{shadow, 'b', w, 0, "allow 10 60000"},
		}, ""},
		{"a peek denies what is over, and spares the others", "a=11", false, []check{
			{enforced, 'a', w, 0, "deny 60000"},
			{enforced, 'b', w, 1, "allow 10 60000"},
		}, "a=11"},
		{"a peek sees what the request takes", "", false, []check{
			{enforced, 'a', w, 10, "allow 0 60000"},
			{enforced, 'a', w, 0, "allow 0 60000"},
		}, "a=10"},
		{"a peek with overdraw records nothing", "a=11 w=21000", false, []check{
			{enforced | overdraws, 'a', w, 0, "deny 60000"},
			{enforced | overdraws, 'w', b, 0, "deny 500"},
		}, "a=11 w=21000"},

		// S7: quotas deny together.
		{"some quotas have room: those are debited", "b=10", false, []check{
			{quota, 'a', w, 3, "allow 7 60000"},
			{quota, 'b', w, 3, "deny 60000"},
		}, "a=3 b=10"},
		{"one without room overdraws also in an allowed request", "b=9", false, []check{
			{quota, 'a', w, 3, "allow 7 60000"},
			{quota | overdraws, 'b', w, 3, "deny 60000"},
		}, "a=3 b=12"},
		{"no quota has room", "a=10 b=8", false, []check{
			{enforced, 'c', w, 1, "allow 10 60000"},
			{quota, 'a', w, 3, "deny 60000"},
			{quota, 'b', w, 3, "deny 60000"},
		}, "a=10 b=8"},
		{"no quota has room, with overdraw", "a=10 b=8", false, []check{
			{enforced, 'c', w, 1, "allow 10 60000"},
			{quota | overdraws, 'a', w, 3, "deny 60000"},
			{quota, 'b', w, 3, "deny 60000"},
		}, "a=13 b=8"},
		{"an enforced check denies: no quota is debited", "c=10", false, []check{
			{enforced, 'c', w, 1, "deny 60000"},
			{quota, 'a', w, 3, "allow 10 60000"},
		}, "c=10"},
		{"one quota is an enforced check", "a=10", false, []check{
			{quota, 'a', w, 1, "deny 60000"},
		}, "a=10"},
		{"two quotas on one key: the second waits for both", "w=10000", false, []check{
			{quota, 'w', b, 6, "allow 4 8000"},
			{quota, 'w', b, 6, "deny 4000"}, // 16 are used, and 12 will be wanted
		}, "w=16000"},
		{"a quota that never fits beside another", "", false, []check{
			{quota, 'a', w, 6, "allow 4 60000"},
			{quota, 'a', w, 6, "never 60000"},
		}, "a=6"},

		// S8: shadow checks come after the verdict.
		{"a shadow check is debited, and denies nothing", "b=10", false, []check{
			{enforced, 'a', w, 1, "allow 9 60000"},
			{shadow, 'b', w, 1, "deny 60000"},
			{shadow, 'c', w, 1, "allow 9 60000"},
		}, "a=1 b=10 c=1"},
		{"none in a denied request", "a=10", false, []check{
			{enforced, 'a', w, 1, "deny 60000"},
			{shadow, 'b', w, 1, "skipped"},
			{shadow, 'c', w, 0, "skipped"},
		}, "a=10"},
		{"a shadow check overdraws as any other", "a=9 w=15000", false, []check{
			{shadow | overdraws, 'a', w, 5, "deny 60000"},
			{shadow | overdraws, 'w', b, 10, "deny 7500"},
		}, "a=14 w=25000"},
		{"each shadow check for itself", "", false, []check{
			{shadow, 'a', w, 6, "allow 4 60000"},
			{shadow, 'a', w, 6, "deny 60000"},
			{shadow, 'a', w, 4, "allow 0 60000"},
		}, "a=10"},

		// S11: refunds go first and stay.
		{"a refund makes room for its own request", "a=10", false, []check{
			{refund, 'a', w, 4, "allow 2 60000"},
			{enforced, 'a', w, 2, "allow 2 60000"},
		}, "a=8"},
		{"refunds stay when the request is denied", "a=5 b=10", false, []check{
			{refund, 'a', w, 2, "allow 7 60000"},
			{refund, 'c', w, 2, "allow 10 60000"},
			{enforced, 'b', w, 1, "deny 60000"},
		}, "a=3 b=10"},
		{"and when the denying check is on the same key", "a=9", false, []check{
			{refund, 'a', w, 2, "allow 3 60000"},
			{enforced, 'a', w, 4, "deny 60000"},
		}, "a=7"},
		{"and when it was denied elsewhere", "a=9 b=2", true, []check{
			{refund, 'a', w, 9, "allow 10 60000"},
			{enforced, 'b', w, 1, "allow 8 60000"},
		}, "b=2"},
		{"a refund never denies, nor one of 0", "a=20", false, []check{
			{refund, 'a', w, 0, "allow 0 60000"},
			{refund, 'a', w, 5, "allow 0 60000"},
		}, "a=15"},
		{"a refund takes debt back first", "w=35000", false, []check{
			{refund, 'w', b, 10, "allow 0 12500"},
		}, "w=25000"},
	} {
		t.Run(x.name, func(t *testing.T) {
			s, a := newStore(t), ask(x.checks)
			s.plant(x.before)
			a.Denied = x.denied
			s.decide(t0, a)
			var want []string
			for _, c := range x.checks {
				want = append(want, c.want)
			}
			if diff := cmp.Diff(want, verdicts(a)); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
			if got := s.used(); got != x.after {
				t.Errorf("used %q, want %q", got, x.after)
			}
		})
	}
}

// F08: a user's bucket stays full while the tenant's rule denies.
func TestDeniedRequestsCostTheirOtherRulesNothing(t *testing.T) {
	s, user, tenant := newStore(t), bucket(2, second, 20), window(1_000, minute)
	s.values[key('t')] = string(limit.AppendState(nil, &limit.State{Algorithm: 'F', Used: 1_000, End: t0 + minute, Length: minute}))
	s.expiry[key('t')] = t0 + hour
	for ms := int64(0); ms < 30*second; ms += 200 {
		a := ask([]check{{enforced, 'u', user, 1, ""}, {enforced, 't', tenant, 1, ""}})
		s.decide(t0+ms, a)
		if got, want := verdicts(a), []string{"allow 20 0", fmt.Sprintf("deny %d", minute-ms)}; !slices.Equal(got, want) {
			t.Fatalf("after %d ms: %v, want %v", ms, got, want)
		}
	}
	if got := s.used(); got != "t=1000" {
		t.Errorf("used %q, want only the tenant's", got)
	}
}

// S23, S16, S13: a request whose time is over, whose boundaries are not around
// the store's time, or one of whose keys is of a newer layout, changes nothing,
// not even by refunds and overdraw.
func TestEvaluateDecidesAllOrNone(t *testing.T) {
	w := window(10, minute)
	calendar := *w
	calendar.CalendarCode = 5
	calendar.Bounds = func(int64) [3]int64 { return [3]int64{t0 - 2*day, t0 - day, t0} }
	newer := limit.AppendState(nil, &limit.State{Algorithm: 'F', Used: 3, End: t0 + 5, Length: minute})
	newer[1] = limit.Layout + 1
	held := limit.AppendState(nil, &limit.State{Algorithm: limit.Concurrency, Permits: []limit.Permit{{Expiry: t0}}})
	for _, x := range []struct {
		name     string
		key      byte // of the check that is unlike the others
		p        *limit.Params
		stored   []byte
		notAfter int64
		want     string
	}{
		{"late", 'c', w, nil, t0 - 1, "late late late late"},
		{"stale", 'c', &calendar, nil, t0, "stale stale stale stale"},
		{"newer layout", 'c', w, newer, t0, "undecided undecided layout undecided"},
		{"an algorithm not decided yet", 'c', w, held, t0, "undecided undecided layout undecided"},
		{"newer and stale", 'a', &calendar, newer, t0, "stale stale stale stale"},
	} {
		s := newStore(t)
		s.plant("a=6 b=12")
		if x.stored != nil {
			s.values[key('c')], s.expiry[key('c')] = string(x.stored), t0+hour
		}
		before := fmt.Sprint(s.values)
		a := ask([]check{{refund, 'a', w, 2, ""}, {enforced | overdraws, 'b', w, 1, ""}, {quota, 'c', w, 2, ""}, {shadow, 'd', w, 2, ""}})
		for i := range a.Checks {
			if a.Checks[i].Key == key(x.key) {
				a.Checks[i].Params = x.p
			}
		}
		slots := map[limit.Key]*limit.Slot{}
		limit.Evaluate(a, t0, x.notAfter, func(c *limit.Check) *limit.Slot {
			if slots[c.Key] == nil {
				slots[c.Key] = new(limit.Slot)
				if v, ok := s.values[c.Key]; ok {
					slots[c.Key].Load([]byte(v))
				}
			}
			return slots[c.Key]
		})
		if got := strings.Join(verdicts(a), " "); got != x.want {
			t.Errorf("%s: %s, want %s", x.name, got, x.want)
		}
		for k, slot := range slots {
			if slot.Dirty != nil {
				t.Errorf("%s: key %c is to be written", x.name, k.Digest[0])
			}
			if v, ok := s.values[k]; ok && !slot.Newer && string(limit.AppendState(nil, &slot.State)) != v {
				t.Errorf("%s: the state of key %c changed", x.name, k.Digest[0])
			}
		}
		if after := fmt.Sprint(s.values); after != before {
			t.Errorf("%s: stored %s, want %s", x.name, after, before)
		}
	}
}

// S16: calendar units are whatever the boundaries say, and a state keeps their
// code instead of a length.
func TestCalendarWindows(t *testing.T) {
	month := window(10, 30*day)
	month.CalendarCode = 5
	const first, second, third = t0 - day, t0 + 27*day, t0 + 58*day
	month.Bounds = func(int64) [3]int64 { return [3]int64{first, second, third} }
	var s limit.State
	for _, x := range []struct {
		now  int64
		want string
	}{
		{first - 1, "stale"},
		{first, fmt.Sprintf("allow 9 %d", second-first)},
		{t0, fmt.Sprintf("allow 8 %d", second-t0)},
		{second - 1, "allow 7 1"},
		{second, fmt.Sprintf("allow 9 %d", third-second)},
		{t0, fmt.Sprintf("allow 8 %d", third-t0)}, // the clock went back
		{third - 1, "allow 7 1"},
		{third, "stale"},
	} {
		var v limit.Verdict
		if s, v = limit.Apply(s, month, x.now, 1); text(v) != x.want {
			t.Errorf("at t0 %+d: %s, want %s", x.now-t0, text(v), x.want)
		}
		if s.Used > 0 && s.Length != 5 {
			t.Errorf("at t0 %+d: length %d, want the code", x.now-t0, s.Length)
		}
	}
	// A code and a length never meet, so a calendar's count is carried into a
	// plain window as any other unit's, and back.
	s = limit.State{Algorithm: 'F', Used: 4, End: second, Length: 5}
	if s, v := limit.Apply(s, window(10, minute), t0, 1); text(v) != "allow 5 60000" || s.Length != minute {
		t.Errorf("calendar to plain: %s, %+v", text(v), s)
	}
	s = limit.State{Algorithm: 'F', Used: 4, End: t0 + 1, Length: minute}
	if s, v := limit.Apply(s, month, t0, 1); text(v) != fmt.Sprintf("allow 5 %d", second-t0) || s.Length != 5 {
		t.Errorf("plain to calendar: %s, %+v", text(v), s)
	}
}

// S2: a request of the most checks there may be.
func TestEvaluateTheMostChecks(t *testing.T) {
	s, p := newStore(t), window(limit.MaxChecks, minute)
	a := new(limit.Ask)
	for range limit.MaxChecks {
		a.Checks = append(a.Checks, limit.Check{Key: key('a'), Params: p, Cost: 1, Kind: limit.Enforced})
	}
	s.decide(t0, a)
	if got := s.used(); got != "a=64" {
		t.Errorf("used %q, want a=64", got)
	}
	s.decide(t0, a)
	for i := range a.Checks {
		if v := a.Checks[i].Verdict; v.Outcome != limit.Deny || v.Cause != limit.CauseLimit {
			t.Errorf("check %d of the second request: %s, want deny", i, text(v))
		}
	}
}

// A request that gives all back and takes again starts with nothing of what the
// last millitoken left (S11, S13); and so does one that finds the bucket empty.
func TestAnEmptyBucketHasNoRemainder(t *testing.T) {
	p := bucket(7, 30*second, 20) // 7/30 of a millitoken a millisecond
	for _, x := range []struct {
		name   string
		before limit.State
		checks []check
	}{
		{"given back", limit.State{Algorithm: 'B', Used: 500, Remainder: 29, Updated: t0}, []check{{refund, 'a', p, 1, ""}, {enforced, 'a', p, 1, ""}}},
		{"leaked", limit.State{Algorithm: 'B', Used: 1, Remainder: 29, Updated: t0 - 4}, []check{{enforced, 'a', p, 1, ""}}},
	} {
		slot := limit.Slot{State: x.before}
		limit.Evaluate(ask(x.checks), t0, t0, func(*limit.Check) *limit.Slot { return &slot })
		if want := (limit.State{Algorithm: 'B', Used: 1000, Updated: t0}); !cmp.Equal(slot.State, want) {
			t.Errorf("%s: %+v, want %+v", x.name, slot.State, want)
		}
	}
}
