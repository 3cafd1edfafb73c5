package authority

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// hammer has callers debit one key through several authorities until they have
// asked for that much in all, and returns how much was admitted.
func hammer(t *testing.T, rigs []*rig, callers int, demand int64, c limit.Check) (admitted int64) {
	t.Helper()
	var (
		wg    sync.WaitGroup
		asked atomic.Int64
		got   atomic.Int64
	)
	for i := range callers {
		g := rigs[i%len(rigs)]
		wg.Go(func() {
			for asked.Add(c.Cost) <= demand {
				switch v := g.ask(patience, c).Checks[0].Verdict; v.Outcome {
				case limit.Allow:
					got.Add(c.Cost)
				case limit.Deny:
				default:
					t.Errorf("verdict %+v, want a decision", v)
					return
				}
			}
		})
	}
	wg.Wait()
	return got.Load()
}

func rigs(t *testing.T, n int, url string) []*rig {
	t.Helper()
	all := make([]*rig, n)
	for i := range all {
		all[i] = run(t, url)
	}
	return all
}

// TestRacersAdmitTheLimitExactly is failure F03: 64 callers on one key through
// three authorities.
func TestRacersAdmitTheLimitExactly(t *testing.T) {
	s := redistest.Start(t)
	const hits = 2_000
	p := fixed(hits, week)
	if got := hammer(t, rigs(t, 3, s.URL()), 64, 3*hits, take(keyA, p, 1)); got != hits {
		t.Errorf("%d hits were admitted, want exactly %d", got, hits)
	}
	if got := used(t, s); got != hits {
		t.Errorf("%d hits are stored, want exactly %d", got, hits)
	}
}

// TestRacersAdmitWhatABucketHas: at least its capacity, and at most what drains
// by the store's own clock besides.
func TestRacersAdmitWhatABucketHas(t *testing.T) {
	s := redistest.Start(t)
	const capacity, rate = 1_000, 50 // a second
	p := bucket(capacity, rate, 1_000)
	began := s.Time(t)
	got := hammer(t, rigs(t, 3, s.URL()), 64, 4*capacity, take(keyA, p, 1))
	took := s.Time(t).Sub(began)
	if most := capacity + int64(rate*took.Seconds()); got < capacity || got > most {
		t.Errorf("%d hits were admitted in %v, want %d to %d", got, took, capacity, most)
	}
}

// TestTwoExportsRaceFor15Tokens is failure F07: one of two costs of 10 is
// admitted, and the other is told to come back in 3 s.
func TestTwoExportsRaceFor15Tokens(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock())
	s.StopClock(time.UnixMilli(epoch))
	s.Time(t) // Valkey answers one command by the clock before
	p := bucket(20, 2, 1_000)
	all := rigs(t, 2, s.URL())
	for round := range 20 {
		s.MustDo(t, "FLUSHALL")
		if v := all[0].ask(patience, take(keyA, p, 5)).Checks[0].Verdict; v != allowed(15, 2_500) {
			t.Fatalf("before the race: %+v", v)
		}
		var wg sync.WaitGroup
		got := make([]limit.Verdict, 2)
		for i, g := range all {
			wg.Go(func() { got[i] = g.ask(patience, take(keyA, p, 10)).Checks[0].Verdict })
		}
		wg.Wait()
		if got[0].Outcome == limit.Deny {
			got[0], got[1] = got[1], got[0]
		}
		if got[0] != allowed(5, 7_500) || got[1] != denied(2_500) {
			t.Fatalf("round %d: %+v and %+v, want one allowed with 5 left and one denied for 2,500 ms, in whole seconds 3", round, got[0], got[1])
		}
	}
}

// wantAllWithTTL scans the store, asserts that every key will go and returns how
// many there are.
func wantAllWithTTL(t *testing.T, s *redistest.Server) int {
	t.Helper()
	const scan = `local all, without, at = 0, {}, '0'
repeat
  local page = redis.call('SCAN', at, 'COUNT', 1000)
  at = page[1]
  for _, k in ipairs(page[2]) do
    all = all + 1
    if redis.call('PTTL', k) < 0 then without[#without + 1] = k end
  end
until at == '0'
return { all, without }`
	reply := s.MustDo(t, "EVAL", scan, "0").([]any)
	if without := reply[1].([]any); len(without) > 0 {
		t.Errorf("%d keys have no TTL, as %q", len(without), without[0])
	}
	return int(reply[0].(int64))
}

// TestEveryKeyHasATTL is failure F04: amid random requests under random rules
// every key goes by itself.
func TestEveryKeyHasATTL(t *testing.T) {
	l := newLab(t)
	w, now := newWorld(seed(t)), int64(epoch)
	most := 0
	for i := range 500 {
		now = w.step(now)
		l.at(now)
		w.estimate = w.guess(now)
		l.batch(w.estimate, w.requests(now)...)
		if i%10 == 0 {
			most = max(most, wantAllWithTTL(t, l.server))
		}
	}
	if most < randomKeys/2 {
		t.Errorf("the store never had more than %d keys, want %d", most, randomKeys/2)
	}
}

// TestKilledStoreHasNoKeyWithoutTTL kills a store that writes everything down
// amid a load of new keys (failure F04).
func TestKilledStoreHasNoKeyWithoutTTL(t *testing.T) {
	keys := 10_000
	if testing.Short() {
		keys = 1_000
	}
	s := redistest.Start(t, redistest.WithAppendOnly())
	g := run(t, s.URL())
	var next atomic.Int64
	stop := load(64, func() bool {
		k := keyNumber(0)
		n := next.Add(1)
		k.Digest[1], k.Digest[2], k.Digest[3] = byte(n>>16), byte(n>>8), byte(n)
		g.ask(time.Second, take(k, weekly, 1))
		return true
	})
	eventually(t, "there are enough keys", func() bool { return next.Load() > int64(keys)+200 })
	s.Kill(t)
	stop()
	s.Restart(t)
	if got := wantAllWithTTL(t, s); got < keys {
		t.Errorf("the store has %d keys, want at least %d", got, keys)
	}
	g.wantRecovery(t)
}
