package authority

import (
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// Semantics S22: the bounds of queue and flights.

// waiting returns an ask of that many checks, each of a key of its own from
// first on, or all of that one key.
func waiting(first, checks int, oneKey bool) *waiter {
	a := &limit.Ask{}
	for i := range checks {
		k := first + i
		if oneKey {
			k = first
		}
		a.Checks = append(a.Checks, take(keyNumber(k), weekly, 1))
	}
	return &waiter{ask: a}
}

// flightsOf drains the queue and returns the sizes of the asks of each flight.
func flightsOf(q *queue) [][]int {
	var all [][]int
	for {
		batch, _ := q.take(time.Now(), nil, nil, map[limit.Key]struct{}{})
		if len(batch) == 0 {
			return all
		}
		var sizes []int
		for _, w := range batch {
			sizes = append(sizes, len(w.ask.Checks))
		}
		all = append(all, sizes)
	}
}

func TestFlightsAreBoundedAndNoRequestIsSplit(t *testing.T) {
	for _, c := range []struct {
		name string
		asks []*waiter
		want [][]int
	}{
		{"64 keys", []*waiter{waiting(0, 32, false), waiting(32, 32, false), waiting(64, 1, false)}, [][]int{{32, 32}, {1}}},
		{"a request that would exceed them waits whole", []*waiter{waiting(0, 60, false), waiting(60, 5, false)}, [][]int{{60}, {5}}},
		{"known keys are free", []*waiter{waiting(0, 64, false), waiting(0, 64, false), waiting(63, 2, false)}, [][]int{{64, 64}, {2}}},
		{"256 checks", []*waiter{
			waiting(0, 64, true), waiting(0, 64, true), waiting(0, 64, true), waiting(0, 64, true), waiting(0, 1, true),
		}, [][]int{{64, 64, 64, 64}, {1}}},
		{"order is kept", []*waiter{waiting(0, 60, false), waiting(60, 5, false), waiting(0, 1, true)}, [][]int{{60}, {5, 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue(DefaultQueueCalls, flights)
			for _, w := range c.asks {
				if !q.put(w, time.Now()) {
					t.Fatal("the queue is full")
				}
			}
			got := flightsOf(q)
			if len(got) != len(c.want) {
				t.Fatalf("flights %v, want %v", got, c.want)
			}
			for i := range got {
				if len(got[i]) != len(c.want[i]) {
					t.Fatalf("flights %v, want %v", got, c.want)
				}
			}
			if q.total != 0 || len(q.keys) != 0 {
				t.Errorf("an empty queue counts %d keys in all and %d of its own", q.total, len(q.keys))
			}
		})
	}
}

func TestQueueIsBounded(t *testing.T) {
	q := newQueue(16, flights)
	for i := range 16 {
		if !q.put(waiting(i, 1, false), time.Now()) {
			t.Fatalf("caller %d of 16 found the queue full", i)
		}
	}
	if q.put(waiting(99, 1, false), time.Now()) {
		t.Error("a 17th caller found room")
	}
	q = newQueue(16, flights)
	if !q.put(waiting(0, 10, false), time.Now()) || q.put(waiting(10, 7, false), time.Now()) || !q.put(waiting(10, 6, false), time.Now()) {
		t.Error("16 keys are not the bound of waiting keys")
	}
	if !q.putBack([]*waiter{waiting(99, 1, false)}) {
		t.Error("what was on its way already has to find room")
	}
}

func TestOneKeyFillsAtMostAQuarter(t *testing.T) {
	q := newQueue(16, flights)
	for i := range 4 {
		if !q.put(waiting(0, 1, true), time.Now()) {
			t.Fatalf("caller %d of one key was refused", i)
		}
	}
	if q.put(waiting(0, 1, true), time.Now()) {
		t.Error("a key has more than a quarter of the queue")
	}
	if !q.put(waiting(1, 1, true), time.Now()) {
		t.Error("another key was refused with it")
	}
	q = newQueue(16, flights)
	if !q.put(waiting(0, 3, true), time.Now()) || q.put(waiting(0, 2, true), time.Now()) || !q.put(waiting(0, 1, true), time.Now()) {
		t.Error("a request with several checks of a key takes it beyond a quarter")
	}
	// A request that alone is more goes when none other waits, or it never would.
	q = newQueue(16, flights)
	if !q.put(waiting(0, 6, true), time.Now()) {
		t.Error("a request of six checks of one key was refused by an empty queue")
	}
}

func TestExpiredCallersAreDroppedBeforeTheSend(t *testing.T) {
	q := newQueue(16, flights)
	now := time.Now()
	gone, left, stays := waiting(0, 1, true), waiting(1, 1, true), waiting(2, 1, true)
	gone.ask.Deadline, stays.ask.Deadline = now, now.Add(time.Nanosecond)
	left.claim()
	for _, w := range []*waiter{gone, left, stays} {
		q.put(w, time.Now())
	}
	batch, dropped := q.take(now, nil, nil, map[limit.Key]struct{}{})
	if len(batch) != 1 || batch[0] != stays || len(dropped) != 2 {
		t.Errorf("%d go and %d are dropped, want the one whose time is left to go", len(batch), len(dropped))
	}
}

// TestFullQueueAnswersAtOnce stalls the store until the queue is full.
func TestFullQueueAnswersAtOnce(t *testing.T) {
	const room = 8
	s := redistest.Start(t)
	g := run(t, s.URL(), func(c *Config) { c.QueueCalls = room })
	if v := g.spend(patience); v.Outcome != limit.Allow {
		t.Fatalf("before the stall: %+v", v)
	}
	s.Pause(t)
	var wg sync.WaitGroup
	submit := func(k int) <-chan limit.Class {
		got := make(chan limit.Class, 1)
		wg.Add(1)
		g.Submit(&limit.Ask{Checks: one(take(keyNumber(k), weekly, 1)), Deadline: time.Now().Add(time.Second)}, func(c limit.Class) {
			got <- c
			wg.Done()
		})
		return got
	}
	// What the flights carry is not in the queue.
	for k := range flights {
		submit(k)
		eventually(t, "the flight takes it", func() bool { return g.queue.length() == 0 })
	}
	for k := range room {
		submit(10 + k)
	}
	select {
	case c := <-submit(99):
		if c != limit.ClassOverloaded {
			t.Errorf("class %v, want %v", c, limit.ClassOverloaded)
		}
	default:
		t.Error("the caller that found no room was not answered before Submit returned")
	}
	s.Resume(t)
	wg.Wait()
	g.wantRecovery(t)
	if got := g.counter(t, "weir_authority_errors_total", "overloaded"); got != 1 {
		t.Errorf("overloaded = %v, want 1", got)
	}
}
