package memory_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/memory"
)

// t0 is a whole number of days since the epoch, so windows begin at it.
const t0 = int64(20_000 * 86_400_000)

func window(n, length int64) *limit.Params {
	p := &limit.Params{Algorithm: limit.FixedWindow, Limit: n, Window: length, Capacity: n, OverdrawCap: n}
	p.Rate(n, length)
	return p
}

func bucket(n, length, capacity int64) *limit.Params {
	p := &limit.Params{Algorithm: limit.TokenBucket, Limit: n, Window: length, Capacity: capacity, OverdrawCap: capacity}
	p.Rate(n, length)
	return p
}

func key(rule, n int) (k limit.Key) {
	binary.BigEndian.PutUint32(k.Digest[:], uint32(rule))
	binary.BigEndian.PutUint32(k.Digest[4:], uint32(n))
	return k
}

type clock struct{ ms int64 }

func (c *clock) now() int64 { return c.ms }

func newStore(tb testing.TB, entries int) (*memory.Store, *clock, *prometheus.Registry) {
	tb.Helper()
	c, reg := &clock{ms: t0}, prometheus.NewRegistry()
	return memory.New(memory.Config{MaxEntries: entries}, c.now, reg), c, reg
}

func spend(s *memory.Store, p *limit.Params, k limit.Key, cost int64) limit.Verdict {
	ask := limit.Ask{Checks: []limit.Check{{Key: k, Params: p, Cost: cost, Kind: limit.Enforced}}}
	s.Debit(context.Background(), &ask)
	return ask.Checks[0].Verdict
}

// model is the store without a bound: a map and limit.Evaluate, and no heap.
type model struct {
	states  map[limit.Key]limit.State
	expires map[limit.Key]int64
}

func (m *model) debit(ask *limit.Ask, now int64) {
	for k, at := range m.expires {
		if at <= now {
			delete(m.states, k)
			delete(m.expires, k)
		}
	}
	slots := map[limit.Key]*limit.Slot{}
	limit.Evaluate(ask, now, now, func(c *limit.Check) *limit.Slot {
		if slots[c.Key] == nil {
			slots[c.Key] = &limit.Slot{State: m.states[c.Key]}
		}
		return slots[c.Key]
	})
	for k, s := range slots {
		if s.Dirty == nil {
			continue
		}
		if s.State.Used == 0 {
			delete(m.states, k)
			delete(m.expires, k)
			continue
		}
		at := now + s.State.TTL(s.Dirty, now) - 1000
		if s.OlderRule() {
			at = max(at, m.expires[k])
		}
		m.states[k], m.expires[k] = s.State, at
	}
}

// TestDifferential holds the store to the model over random requests: rules
// of both algorithms, of several versions and revisions, over few keys.
func TestDifferential(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rules := make([][]*limit.Params, 4)
		for i := range rules {
			for v := range 3 {
				p := window(rng.Int64N(9)+1, 1000*(rng.Int64N(5)+1))
				if rng.IntN(2) == 0 {
					p = bucket(rng.Int64N(9)+1, 1000*(rng.Int64N(5)+1), rng.Int64N(9)+1)
				}
				p.Version = uint64(v)
				rules[i] = append(rules[i], p)
			}
		}
		s, c, _ := newStore(t, 1000)
		m := &model{states: map[limit.Key]limit.State{}, expires: map[limit.Key]int64{}}
		denials := 0
		const operations = 3000
		for op := range operations {
			c.ms += rng.Int64N(400)
			if rng.IntN(200) == 0 {
				c.ms += rng.Int64N(20_000)
			}
			ask := limit.Ask{Denied: rng.IntN(20) == 0}
			for kind := limit.Refund; kind <= limit.Shadow; kind++ {
				for range rng.IntN(3) {
					r := rng.IntN(len(rules))
					ask.Checks = append(ask.Checks, limit.Check{
						Key: key(r, rng.IntN(3)), Params: rules[r][rng.IntN(3)], Kind: kind,
						Cost: rng.Int64N(6), Overdraw: rng.IntN(3) == 0,
					})
				}
			}
			want := limit.Ask{Denied: ask.Denied, Checks: append([]limit.Check(nil), ask.Checks...)}
			m.debit(&want, c.ms)
			s.Debit(context.Background(), &ask)
			for i := range ask.Checks {
				if ask.Checks[i] != want.Checks[i] {
					t.Fatalf("seed %d, operation %d, check %d: %+v, the model has %+v", seed, op, i, ask.Checks[i], want.Checks[i].Verdict)
				}
			}
			for i := range ask.Checks {
				if ask.Checks[i].Verdict.Outcome == limit.Deny {
					denials++
					break
				}
			}
		}
		if denials < operations/10 {
			t.Errorf("seed %d: %d of %d requests met a denial, which tests too little", seed, denials, operations)
		}
		if s.Len() < len(m.states) {
			t.Errorf("seed %d: the store holds %d states, the model %d", seed, s.Len(), len(m.states))
		}
	}
}

// TestExpiry shows that a state makes room in the very millisecond in which it
// equals an absent one, and not before.
func TestExpiry(t *testing.T) {
	for name, p := range map[string]*limit.Params{
		"fixed_window": window(1, 1000),
		"token_bucket": bucket(1, 1000, 1),
	} {
		t.Run(name, func(t *testing.T) {
			s, c, reg := newStore(t, 1)
			if v := spend(s, p, key(0, 0), 1); v.Outcome != limit.Allow {
				t.Fatalf("first key: %+v, want it allowed", v)
			}
			c.ms = t0 + 999
			if v := spend(s, p, key(0, 1), 1); v.Outcome != limit.Allow || overflows(t, reg) != 1 {
				t.Fatalf("second key at 999 ms: %+v and %v overflows, want it allowed by the shared bucket", v, overflows(t, reg))
			}
			c.ms = t0 + 5000
			spend(s, p, key(0, 2), 1)
			if n := overflows(t, reg); n != 1 {
				t.Errorf("overflows at 5 s = %v, want 1: the first state had expired", n)
			}
			c.ms = t0 + 60_000
			spend(s, p, key(0, 2), 0)
			if s.Len() != 0 {
				t.Errorf("states after a minute = %d, want 0", s.Len())
			}
		})
	}
}

func TestExpiryIsExact(t *testing.T) {
	s, c, reg := newStore(t, 1)
	p := window(5, 1000)
	spend(s, p, key(0, 0), 1)
	c.ms = t0 + 1000
	spend(s, p, key(0, 1), 1)
	if n := overflows(t, reg); n != 0 {
		t.Errorf("overflows at the end of the window = %v, want 0", n)
	}
}

func overflows(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "weir_memory_overflow_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("weir_memory_overflow_total is not registered")
	return 0
}

// TestFreshKeysResetNobody is semantics S28: a caller who has used up a budget
// floods the table with fresh keys and still has none.
func TestFreshKeysResetNobody(t *testing.T) {
	const entries, flood = 1000, 100_000
	s, _, reg := newStore(t, entries)
	p := window(3, 3_600_000)
	for range 3 {
		spend(s, p, key(0, 0), 1)
	}
	admitted := 0
	for i := range flood {
		if spend(s, p, key(0, i+1), 1).Outcome == limit.Allow {
			admitted++
		}
	}
	if v := spend(s, p, key(0, 0), 1); v.Outcome != limit.Deny {
		t.Errorf("the depleted key after the flood: %+v, want it denied", v)
	}
	if want := entries - 1 + 3; admitted != want {
		t.Errorf("fresh keys admitted = %d, want %d: one each until the table is full, then 3 together", admitted, want)
	}
	if s.Len() > entries+1 {
		t.Errorf("states = %d, want at most %d and the rule's overflow bucket", s.Len(), entries)
	}
	if n := overflows(t, reg); n != flood-entries+1 {
		t.Errorf("overflows = %v, want %d", n, flood-entries+1)
	}
}

// TestOverflowIsOfOneRule shows that a flood of one rule's keys uses up no
// other rule's shared bucket.
func TestOverflowIsOfOneRule(t *testing.T) {
	s, _, _ := newStore(t, 10)
	flooded, other := window(1, 3_600_000), window(1, 3_600_000)
	for i := range 100 {
		spend(s, flooded, key(0, i), 1)
	}
	if v := spend(s, other, key(1, 0), 1); v.Outcome != limit.Allow {
		t.Errorf("first key of the other rule: %+v, want it allowed", v)
	}
	if v := spend(s, other, key(1, 1), 1); v.Outcome != limit.Deny {
		t.Errorf("second key of the other rule: %+v, want it denied by that rule's bucket", v)
	}
}

// TestNoSecondBudgetAfterOverflow shows that a key which spent from the shared
// bucket does not get its whole budget again when the table has room.
func TestNoSecondBudgetAfterOverflow(t *testing.T) {
	s, c, _ := newStore(t, 1)
	short, long := window(5, 1000), window(5, 3_600_000)
	spend(s, short, key(0, 0), 1) // fills the table for a second
	for i := range 5 {
		if v := spend(s, long, key(1, 0), 1); v.Outcome != limit.Allow {
			t.Fatalf("hit %d from the shared bucket: %+v, want it allowed", i+1, v)
		}
	}
	c.ms += 1000
	if v := spend(s, long, key(1, 0), 1); v.Outcome != limit.Deny {
		t.Errorf("hit 6 with room in the table: %+v, want it denied", v)
	}
}

// TestSharedBucketIsCumulative shows that two new keys of one request see each
// other in the shared bucket.
func TestSharedBucketIsCumulative(t *testing.T) {
	s, _, _ := newStore(t, 1)
	filler, p := window(1, 3_600_000), window(3, 3_600_000)
	spend(s, filler, key(0, 0), 1)
	ask := limit.Ask{Checks: []limit.Check{
		{Key: key(1, 0), Params: p, Cost: 2, Kind: limit.Enforced},
		{Key: key(1, 1), Params: p, Cost: 2, Kind: limit.Enforced},
	}}
	s.Debit(context.Background(), &ask)
	if a, b := ask.Checks[0].Verdict.Outcome, ask.Checks[1].Verdict.Outcome; a != limit.Allow || b != limit.Deny {
		t.Errorf("outcomes = %v, %v, want allow and deny", a, b)
	}
	if v := spend(s, p, key(1, 2), 3); v.Outcome != limit.Allow {
		t.Errorf("after the denial: %+v, want the shared bucket untouched", v)
	}
}

func TestClockBack(t *testing.T) {
	s, c, _ := newStore(t, 10)
	p := window(1, 1000)
	c.ms = t0 + 5000
	spend(s, p, key(0, 0), 1)
	c.ms = t0
	if v := spend(s, p, key(0, 0), 1); v.Outcome != limit.Deny || v.Retry != 6000 {
		t.Errorf("after a step back by 5 s: %+v, want a denial until the window in force ends", v)
	}
}

func TestNoDebitAfterTheDeadline(t *testing.T) {
	s, _, _ := newStore(t, 10)
	p := window(1, 1000)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx      context.Context
		deadline time.Time
		want     limit.Class
	}{
		"deadline": {context.Background(), time.Now().Add(-time.Nanosecond), limit.ClassLate},
		"caller":   {gone, time.Time{}, limit.ClassExpired},
	} {
		ask := limit.Ask{Deadline: c.deadline, Checks: []limit.Check{{Key: key(0, 0), Params: p, Cost: 1, Kind: limit.Enforced}}}
		s.Debit(c.ctx, &ask)
		if v := ask.Checks[0].Verdict; v.Outcome != limit.Undecided || v.Class != c.want {
			t.Errorf("%s: %+v, want it undecided, class %v", name, v, c.want)
		}
	}
	if s.Len() != 0 {
		t.Errorf("states = %d, want none", s.Len())
	}
}

// TestConcurrent admits exactly the limit whatever the callers' order.
func TestConcurrent(t *testing.T) {
	s, _, _ := newStore(t, 100)
	p := window(1000, 3_600_000)
	var wg sync.WaitGroup
	admitted := make([]int, 16)
	for g := range admitted {
		wg.Go(func() {
			for i := range 500 {
				spend(s, p, key(1, g*1000+i), 0)
				if spend(s, p, key(0, 0), 1).Outcome == limit.Allow {
					admitted[g]++
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range admitted {
		total += n
	}
	if total != 1000 {
		t.Errorf("admitted = %d, want 1000", total)
	}
}

func TestDebitAllocatesNothing(t *testing.T) {
	s, _, _ := newStore(t, 100)
	p := window(1_000_000, 3_600_000)
	ask := limit.Ask{Checks: []limit.Check{{Key: key(0, 0), Params: p, Cost: 1, Kind: limit.Enforced}}}
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { s.Debit(ctx, &ask) }); n != 0 {
		t.Errorf("allocations of a debit = %v, want 0", n)
	}
}

func TestMetricNames(t *testing.T) {
	_, _, reg := newStore(t, 1)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func BenchmarkDebit(b *testing.B) {
	s, c, _ := newStore(b, 100_000)
	p := bucket(1_000_000, 1000, 1_000_000)
	ctx := context.Background()
	ask := limit.Ask{Checks: []limit.Check{{Params: p, Cost: 1, Kind: limit.Enforced}}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.ms = t0 + int64(i)/1000
		ask.Checks[0].Key = key(0, i%50_000)
		s.Debit(ctx, &ask)
	}
}
