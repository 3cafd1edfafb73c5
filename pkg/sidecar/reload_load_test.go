package sidecar_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
	"github.com/weir-rl/weir/pkg/sidecar"
)

const (
	manyRules = 10_000
	manySwaps = 50
	hotRules  = 1_000 // of them are asked for
)

// hot returns the rules that are asked for: the first hundred, which can be
// exhausted, and others from all over the set.
func hot(n int) int {
	if n < 100 {
		return n
	}
	return 10*n + n%7
}

// modelRule is what version v of the policy below says about rule i.
type modelRule struct {
	absent bool
	limit  int
}

// model: a tenth of the rules is missing in every version, another one each
// time; some allow nothing in some versions; all others have numbers of their
// version. The first hundred are small, so that they are exhausted.
func model(v, i int) modelRule {
	switch {
	case (i+v)%10 == 0:
		return modelRule{absent: true}
	case (i+v)%17 == 0:
		return modelRule{}
	case i < 100:
		return modelRule{limit: 20 + v%3}
	}
	return modelRule{limit: 1_000_000 + v}
}

func manyRulesYAML(v, rules int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: %d\ndomain: api\ndescriptors:\n", v)
	for i := range rules {
		if m := model(v, i); !m.absent {
			fmt.Fprintf(&b, "  - {key: user, value: u%d, rate_limit: {unit: year, requests_per_unit: %d}}\n", i, m.limit)
		}
	}
	return b.String()
}

var (
	answeredBy   = regexp.MustCompile(`policy_version: "(\d+)"`)
	answeredWith = regexp.MustCompile(`descriptor 0: (OK|OVER_LIMIT)(?:, limit (\d+) per YEAR, remaining (\d+))?`)
)

// judge compares an answer with the model of the version that it names, and
// returns whether something was counted.
func judge(i int, text string) (counted bool, err error) {
	by, with := answeredBy.FindStringSubmatch(text), answeredWith.FindStringSubmatch(text)
	if by == nil || with == nil {
		return false, fmt.Errorf("an answer of another form:\n%s", text)
	}
	v, _ := strconv.Atoi(by[1])
	shown, _ := strconv.Atoi(with[2])
	left, _ := strconv.Atoi(with[3])
	m := model(v, i)
	allowed := with[1] == "OK"
	switch {
	case m.absent:
		if !allowed || with[2] != "" || !strings.Contains(text, `cause: "no_rule"`) {
			return false, fmt.Errorf("version %d has no rule u%d:\n%s", v, i, text)
		}
		return false, nil
	case shown != m.limit:
		return false, fmt.Errorf("version %d limits u%d to %d:\n%s", v, i, m.limit, text)
	case m.limit == 0 && (allowed || !strings.Contains(text, `cause: "zero_limit"`)):
		return false, fmt.Errorf("version %d allows u%d nothing:\n%s", v, i, text)
	case allowed && left >= m.limit:
		return false, fmt.Errorf("version %d allowed u%d without counting:\n%s", v, i, text)
	}
	return allowed, nil
}

// TestReloadUnderLoad swaps sets of 10,000 rules under load: every answer
// belongs wholly to the version that it names, what Redis counts is what was
// admitted, and old sets leave nothing behind.
func TestReloadUnderLoad(t *testing.T) {
	// Most of the time would go into collecting what parsing leaves.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	rules, swaps := manyRules, manySwaps
	if testing.Short() {
		rules, swaps = hotRules, 20
	}
	server := redistest.Start(t)
	w := reloading(t, "", oneFile("policy.yaml", manyRulesYAML(1, rules)), func(o *sidecar.Options, _ *sidecar.Sidecar) {
		o.Config.Store.Type, o.Config.Store.URL = sidecar.StoreRedis, server.URL()
	})
	client, err := rls.NewClient(w.Addrs().TCP)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	call := func(i int, peek bool) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r := &pipeline.Request{Domain: "api", Descriptors: []pipeline.Descriptor{
			{Entries: []limit.Entry{{Key: "user", Value: "u" + strconv.Itoa(i)}}, HasHits: peek},
		}}
		a, err := client.Call(ctx, r)
		if err != nil {
			return "", err
		}
		return a.Text(), nil
	}

	var admitted [manyRules]atomic.Int64
	var calls atomic.Int64
	one := func(i int) bool {
		text, err := call(i, false)
		counted := false
		if err == nil {
			counted, err = judge(i, text)
		}
		if err != nil {
			t.Error(err)
			return false
		}
		if counted {
			admitted[i].Add(1)
		}
		calls.Add(1)
		return true
	}
	pick := func(random *rand.Rand) int {
		n := random.IntN(hotRules)
		if random.IntN(2) == 0 {
			n %= 100
		}
		return min(hot(n), rules-1)
	}
	load := func() (stop func()) {
		ending := make(chan struct{})
		var callers sync.WaitGroup
		for n := range 4 {
			callers.Go(func() {
				random := rand.New(rand.NewPCG(uint64(n), uint64(calls.Load())))
				for {
					select {
					case <-ending:
						return
					default:
					}
					if !one(pick(random)) {
						return
					}
				}
			})
		}
		return func() { close(ending); callers.Wait() }
	}

	// heap is what is in use, and what a look at the files may have left meanwhile.
	heap := func() uint64 {
		http.DefaultClient.CloseIdleConnections()
		// Twice: what pools hold goes with the second one.
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var early uint64
	stop := load()
	for v := 2; v <= 1+swaps; v++ {
		w.write(".next", manyRulesYAML(v, rules))
		w.rename(w.dir+"/.next", w.dir+"/policy.yaml")
		if code, a := w.reload(); code != http.StatusOK || a.Version != v {
			t.Fatalf("POST = %d %+v, want version %d", code, a, v)
		}
		// Some calls meet each version, however fast or slow the machine is; at
		// most those on their way now met the one before.
		before := calls.Load()
		eventually(t, "calls", func() bool { return calls.Load() >= before+20 || t.Failed() })
		if v == 6 {
			stop()
			for n := range hotRules { // What calls leave in the store and in metrics is there from now on.
				one(min(hot(n), rules-1))
			}
			early = heap()
			for range 4 {
				early = min(early, heap())
			}
			stop = load()
		}
	}
	stop()
	var late uint64
	eventually(t, fmt.Sprintf("a heap after %d swaps that is no larger than the one after 5, of %d bytes", swaps, early), func() bool {
		late = heap()
		return float64(late) <= 1.1*float64(early)
	})
	t.Logf("%d calls; heap %d after 5 swaps, %d after %d", calls.Load(), early, late, swaps)

	for n := range hotRules {
		i := min(hot(n), rules-1)
		m, n := model(1+swaps, i), int(admitted[i].Load())
		if m.absent || m.limit == 0 {
			continue
		}
		text, err := call(i, true)
		if err != nil {
			t.Fatal(err)
		}
		by, with := answeredBy.FindStringSubmatch(text), answeredWith.FindStringSubmatch(text)
		left, _ := strconv.Atoi(with[3])
		if by[1] != strconv.Itoa(1+swaps) || left != max(0, m.limit-n) {
			t.Errorf("u%d: %d were admitted, and Redis has %d of %d left:\n%s", i, n, left, m.limit, text)
		}
	}
}
