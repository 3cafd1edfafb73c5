package authority

import (
	"fmt"
	"testing"

	"github.com/weir-rl/weir/internal/history"
	"github.com/weir-rl/weir/pkg/limit"
)

// plainRule is the one rule for ever of key k in the runs whose history is
// judged. Every fourth key overdraws, every fifth takes refunds.
func plainRule(k int) *limit.Params {
	hits, window := int64(3+k*7%40), []int64{10_000, 1_000, 7_777, 60_000}[k%4]
	if k%2 == 0 {
		return fixed(hits, window)
	}
	return bucket(int64(1+k*11%50), hits, window)
}

func plainOverdraws(k int) bool { return k%4 < 2 && k%3 == 0 }

func plainRefunds(k int) bool { return k%5 == 4 }

// newPlainWorld makes random requests under plain rules.
func newPlainWorld(seed uint64) *world {
	w := newWorld(seed)
	for k := range randomKeys {
		w.rules[k], w.current[k] = []*limit.Params{plainRule(k)}, 0
	}
	return w
}

// plainRequests are requests whose checks are of their keys' plain sort.
func plainRequests(w *world, now int64) []timed {
	batch := w.requests(now)
	numbers := map[limit.Key]int{}
	for k := range randomKeys {
		numbers[keyNumber(k)] = k
	}
	for _, a := range batch {
		for i := range a.Checks {
			c := &a.Checks[i]
			k := numbers[c.Key]
			c.Overdraw = plainOverdraws(k)
			if c.Kind == limit.Refund && !plainRefunds(k) {
				c.Cost = 0 // what a refund on a rule that does not trust refunds becomes
			}
		}
	}
	return batch
}

// recording is the history of a run as its judge may see it.
type recording struct {
	events []history.Event
	rules  map[string]history.Rule
}

func newRecording() *recording {
	r := &recording{rules: map[string]history.Rule{}}
	for k := range randomKeys {
		p := plainRule(k)
		r.rules[keyName(keyNumber(k))] = history.Rule{
			Bucket: p.Algorithm == limit.TokenBucket, Limit: p.Limit, Window: p.Window, Capacity: p.Capacity,
		}
	}
	return r
}

// add records a decided request. The checks of a denied request that would have
// allowed took nothing and were denied nothing.
func (r *recording) add(now int64, a *limit.Ask) {
	request := !a.Denied
	quotas, full := 0, 0
	for i := range a.Checks {
		c := &a.Checks[i]
		if c.Verdict.Outcome == limit.Undecided {
			return
		}
		switch {
		case c.Kind == limit.Enforced && c.Verdict.Outcome == limit.Deny:
			request = false
		case c.Kind == limit.Quota:
			quotas++
			if c.Verdict.Outcome == limit.Deny {
				full++
			}
		}
	}
	request = request && (quotas == 0 || full < quotas)
	wanted := map[limit.Key]int64{} // what earlier checks would have taken
	var late []history.Event        // what overdraws is charged after all that is taken
	defer func() { r.events = append(r.events, late...) }()
	for i := range a.Checks {
		c := &a.Checks[i]
		e := history.Event{Time: now, Key: keyName(c.Key), Cost: c.Cost, Admitted: c.Verdict.Outcome == limit.Allow}
		if c.Overdraw && c.Verdict.Outcome == limit.Deny {
			e.Charged = c.Cost
		}
		switch {
		case c.Kind == limit.Refund:
			e.Cost = -c.Cost
		case c.Verdict.Outcome == limit.NotEvaluated:
			continue
		case e.Admitted && !request:
			wanted[c.Key] += c.Cost
			continue
		case !e.Admitted && !request:
			e.Cost += wanted[c.Key]
		}
		switch {
		case e.Cost == 0:
		case !e.Admitted && c.Kind != limit.Shadow:
			late = append(late, e)
		case c.Kind == limit.Shadow:
			r.events = append(append(r.events, late...), e)
			late = nil
		default:
			r.events = append(r.events, e)
		}
	}
}

// recorded runs random requests under plain rules and records them.
func recorded(l *lab, seed uint64, requests int, back bool) *recording {
	l.clear()
	w, r, now := newPlainWorld(seed), newRecording(), int64(epoch)
	for n := 0; n < requests; {
		next := w.step(now)
		if !back {
			next = max(now, next)
		}
		now = next
		l.at(now)
		w.estimate = now
		batch := plainRequests(w, now)
		at, _ := l.batch(now, batch...)
		r.events = append(r.events, history.Event{Time: at})
		for _, a := range batch {
			r.add(at, a.Ask)
		}
		n += len(batch)
	}
	return r
}

// TestHistoryKeepsItsBounds has random runs judged by package history, which
// shares no code with the limiter: what was admitted over every span (S17), and
// that nothing was refused for which there was room.
func TestHistoryKeepsItsBounds(t *testing.T) {
	requests := 30_000
	if testing.Short() {
		requests = 5_000
	}
	l := newLab(t)
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprintf("clock goes back %v", back), func(t *testing.T) {
			l.reporter = t
			r := recorded(l, seed(t), requests, back)
			admitted, refused := 0, 0
			for _, e := range r.events {
				switch {
				case e.Admitted:
					admitted++
				case e.Key != "":
					refused++
				}
			}
			t.Logf("%d events: %d admitted, %d refused", len(r.events), admitted, refused)
			if admitted < requests/4 || refused < requests/10 {
				t.Errorf("%d admitted and %d refused of %d requests judge nothing", admitted, refused, requests)
			}
			for _, fault := range history.Check(r.events, r.rules) {
				t.Error(fault)
			}
		})
	}
}

// TestHistoryNoticesFaults: the judge would have noticed what it is there for. A
// dropped remainder is not among it: that is less than a millitoken for each
// admission, which shows in the decisions only by luck.
func TestHistoryNoticesFaults(t *testing.T) {
	l := newLab(t)
	mutants := map[string]mutant{}
	for _, m := range readMutants(t) {
		mutants[m.name] = m
	}
	for _, name := range []string{
		"a cost that fits exactly is denied",
		"one hit too many fits",
		"a long time drains more than there is",
		"two checks of one key do not add up",
		"a denied request keeps what it would have taken",
		"overdraw is off when others deny",
	} {
		t.Run(name, func(t *testing.T) {
			text, err := mutants[name].apply(debitScript)
			if err != nil {
				t.Fatal(err)
			}
			l.reporter = t
			l.use(newScript(text))
			r := recorded(l, 1, 6_000, false)
			if len(history.Check(r.events, r.rules)) == 0 {
				t.Errorf("the record of a faulty script shows no fault")
			}
		})
	}
}
