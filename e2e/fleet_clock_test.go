package e2e

import (
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
)

// The rules of the tests of clocks (failure F06).
const (
	clockWeek  = 400
	clockBurst = 100
	clockRate  = 20 // each second
)

var clockPolicy = fmt.Sprintf(`
domain: fleet
descriptors:
  - key: week
    rate_limit: {unit: week, requests_per_unit: %d}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: %d, burst: %d}
  - key: slow
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 2, burst: 20}
`, clockWeek, clockRate, clockBurst)

// threeInside starts three sidecars in this process on one Redis. The wall clock of sidecar i is wrong by offsets[i].
func threeInside(t *testing.T, redis *redistest.Server, offsets *[3]atomic.Int64) (nodes []node) {
	t.Helper()
	policy := writePolicy(t, clockPolicy)
	for i := range offsets {
		c := settings(redis.URL(), "fleet", "", policy)
		c.Ops.Address = "127.0.0.1:0"
		c.Decision.Budget = 10 * time.Second // Busy cores decide nothing here.
		w, err := startWeirAt(c, func() time.Time {
			// Without a monotonic reading, as what Now gives after a step.
			return time.Now().Round(0).Add(time.Duration(offsets[i].Load()))
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.close(); err != nil {
				t.Error(err)
			}
		})
		nodes = append(nodes, node{rls: w.Addrs().TCP, ops: w.Addrs().Ops})
	}
	return nodes
}

// weekAndBucket has every other call of a caller ask for a week's budget and the others for a bucket's.
func weekAndBucket(_, call int) (string, *pipeline.Request) {
	if call%2 == 0 {
		return "week", request("week=one")
	}
	return "bucket", request("bucket=one")
}

// decidedByStore asserts what a load on weekAndBucket admitted: the bounds of the rules by the store's time, which at
// the latest was end.
func decidedByStore(t *testing.T, got outcome, begin, end time.Time) {
	t.Helper()
	if got.source("authority") != got.answers {
		t.Errorf("of %d answers %d are the authority's: %v", got.answers, got.source("authority"), got.sources)
	}
	if n := got.admitted["week"]; n != clockWeek {
		t.Errorf("the week admitted %d, want %d exactly", n, clockWeek)
	}
	most := clockBurst + int(clockRate*end.Sub(begin)/time.Second) + 1
	if n := got.admitted["bucket"]; n < clockBurst || n > most {
		t.Errorf("the bucket admitted %d in %v, want at least %d and at most %d", n, end.Sub(begin), clockBurst, most)
	}
	t.Logf("admitted %v of %d, the bucket's bound is %d", got.admitted, got.answers, most)
}

// TestClocksOfSidecarsDecideNothing steps the wall clocks of three sidecars by up to a minute, each its own way, amid
// load: what is admitted is what the store's clock allows.
func TestClocksOfSidecarsDecideNothing(t *testing.T) {
	redis := redistest.Start(t, redistest.WithClock())
	midweek(redis)
	var offsets [3]atomic.Int64
	nodes := threeInside(t, redis, &offsets)
	begin := redis.Time(t)
	l := (&load{nodes: nodes, callers: 24, calls: 60, make: weekAndBucket}).start(t)
	steps := [...][3]time.Duration{
		{30 * time.Second, -30 * time.Second, time.Minute},
		{-time.Minute, time.Minute, -30 * time.Second},
		{time.Minute, 30 * time.Second, -time.Minute},
		{-30 * time.Second, -time.Minute, time.Minute},
	}
	for _, step := range steps {
		l.more(t, 200)
		for i := range offsets {
			offsets[i].Store(int64(step[i]))
		}
		for i, n := range nodes {
			// The gauge shows that the wrong clock is the one that the sidecar reads.
			got := n.sum(t, "weir_authority_clock_offset_seconds")
			if want := time.Until(redis.Time(t)) - step[i]; math.Abs(got-want.Seconds()) > 15 {
				t.Errorf("sidecar %d sees the store's clock %v s ahead of its own, want about %v", i, got, want)
			}
		}
	}
	got := l.wait()
	decidedByStore(t, got, begin, redis.Time(t))
}

// midweek moves a server's clock to the middle of a week, so that none ends during a test.
func midweek(redis *redistest.Server) {
	const seconds = 7 * 24 * 3600
	redis.SetClockOffset(time.Duration(seconds/2-time.Now().Unix()%seconds) * time.Second)
}

// TestStoreClockStepsAmidLoad steps the clock that does decide, both ways: what a step forward mints is the rate times
// the step, once, however often the clock goes back and forth; a step back mints nothing; no call fails.
func TestStoreClockStepsAmidLoad(t *testing.T) {
	redis := redistest.Start(t, redistest.WithClock())
	midweek(redis)
	nodes := threeInside(t, redis, new([3]atomic.Int64))
	base := time.Until(redis.Time(t))
	begin := redis.Time(t)
	latest := begin
	l := (&load{nodes: nodes, callers: 24, calls: 80, make: weekAndBucket}).start(t)
	for _, step := range []time.Duration{5, 0, 10, -30, 10, -60, 0, 20} {
		l.more(t, 150)
		if now := redis.Time(t); now.After(latest) {
			latest = now
		}
		redis.SetClockOffset(base + step*time.Second)
	}
	got := l.wait()
	if now := redis.Time(t); now.After(latest) {
		latest = now
	}
	decidedByStore(t, got, begin, latest)
}

// TestStoreClockSteps moves a clock that stands otherwise, so that every number is exact: GUARANTEES.md says what each
// step costs.
func TestStoreClockSteps(t *testing.T) {
	redis := redistest.Start(t, redistest.WithClock())
	noon := time.Date(2030, 5, 14, 12, 0, 20, 0, time.UTC)
	redis.StopClock(noon)
	nodes := threeInside(t, redis, new([3]atomic.Int64))
	var clients []*rls.Client
	for _, n := range nodes {
		client, err := rls.NewClient(n.rls)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		clients = append(clients, client)
	}
	// admits asks one sidecar after the other until each has denied.
	admits := func(descriptor string) (n int) {
		t.Helper()
		for denied, at := 0, 0; denied < len(clients); at++ {
			answer, err := clients[at%len(clients)].Call(t.Context(), request(descriptor))
			if err != nil {
				t.Fatal(err)
			}
			if source := said(answer, "source"); source != "authority" {
				t.Fatalf("%s decided, want the authority:\n%s", source, answer.Text())
			}
			if answer.Code() == pipeline.OK {
				n, denied = n+1, 0
			} else {
				denied++
			}
		}
		return n
	}
	for _, step := range []struct {
		descriptor string
		to         time.Duration // after noon
		want       int
		why        string
	}{
		{"slow=a", 0, 20, "a full bucket"},
		{"slow=a", 5 * time.Second, 10, "five seconds at 2 a second"},
		{"slow=a", -25 * time.Second, 0, "a step back by 30 s mints nothing"},
		{"slow=a", -15 * time.Second, 0, "ten seconds later the bucket is still frozen"},
		{"slow=a", 5 * time.Second, 0, "30 s after the step the clock is where it was"},
		{"slow=a", 6 * time.Second, 2, "no longer frozen than the step: the next second flows in"},
		{"slow=a", 13 * time.Second, 14, "a step forward mints the rate times the step"},
		{"slow=a", -47 * time.Second, 0, "back by a minute"},
		{"slow=a", 13 * time.Second, 0, "and forth: what was minted is not minted again"},
		{"slow=a", 73 * time.Second, 20, "a step of a minute mints no more than the bucket holds"},

		{"minute=a", 0, 5, "a window"},
		{"minute=a", -time.Minute, 0, "a step back to the window before: the one in force stays"},
		{"minute=a", 39 * time.Second, 0, "until its own end"},
		{"minute=a", 40 * time.Second, 5, "the next window"},
		{"minute=a", 2 * time.Minute, 5, "a step forward over a boundary: one window's limit"},
		{"minute=a", time.Minute, 0, "back over it: the later window stays in force"},
		{"minute=a", 2*time.Minute + 39*time.Second, 0, "a window of two minutes by now, and still one limit"},
		{"minute=a", 2*time.Minute + 40*time.Second, 5, "until the clock passes its end"},
	} {
		redis.StopClock(noon.Add(step.to))
		if got := admits(step.descriptor); got != step.want {
			t.Errorf("%s at %v admits %d, want %d: %s", step.descriptor, step.to, got, step.want, step.why)
		}
	}
}
