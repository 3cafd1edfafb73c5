package authority

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

// seedVariable repeats a random run: set it to the seed that the run printed.
const seedVariable = "WEIR_TEST_SEED"

// seed returns the seed of a random test and prints it.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%q: %v", seedVariable, text, err)
		}
	}
	t.Logf("to repeat this run: %s=%d", seedVariable, s)
	return s
}

// The least of what a full differential run must have met, so that a generator
// gone lame cannot pass for a proof.
const (
	leastRequests  = 100_000
	leastBranch    = 100
	leastDenied    = 25 // percent of the requests that were decided
	leastSameKey   = 20 // percent of the requests
	shortRequests  = 10_000
	mutantRequests = 1_500
)

// TestScriptEqualsModel runs random batches through the script, replays them
// with limit.Evaluate at the time that the script returned, and wants every
// verdict, every stored byte and every TTL to be the same.
func TestScriptEqualsModel(t *testing.T) {
	l := newLab(t)
	counted, blocks := instrument(debitScript)
	least := leastRequests
	if testing.Short() {
		least = shortRequests
	}
	d := newDifferential(l, seed(t))
	d.counted, d.hits = newScript(counted), make([]int64, len(blocks))
	l.use(d.counted)
	l.use(newScript(debitScript))
	d.run(least)
	t.Logf("%d requests, %d checks, %d batches; %d %% denied, %d %% with two checks on one key; replies %v",
		d.requests, d.checks, d.batches, 100*d.denied/d.decided, 100*d.sameKey/d.requests, d.replies)
	rarest := slices.Index(d.hits, slices.Min(d.hits))
	t.Logf("%d blocks, the rarest was entered %d times: %s", len(blocks), d.hits[rarest], blocks[rarest])
	if testing.Short() {
		return
	}
	if 100*d.denied < leastDenied*d.decided {
		t.Errorf("%d of %d requests were denied, want %d %%", d.denied, d.decided, leastDenied)
	}
	if 100*d.sameKey < leastSameKey*d.requests {
		t.Errorf("%d of %d requests had two checks on one key, want %d %%", d.sameKey, d.requests, leastSameKey)
	}
	for i, n := range d.hits {
		if n < leastBranch {
			t.Errorf("a block was entered %d times, want %d: %s: %s", n, leastBranch, blocks[i], scriptLine(blocks[i]))
		}
	}
	for code := range replyNotEvaluated + 1 {
		if d.replies[code] < leastBranch {
			t.Errorf("verdict %d was given %d times, want %d", code, d.replies[code], leastBranch)
		}
	}
}

func scriptLine(block string) string {
	var n int
	if _, err := fmt.Sscanf(block, "line %d", &n); err != nil {
		return ""
	}
	return strings.TrimSpace(strings.Split(debitScript, "\n")[n-1])
}

// differential is a run of random batches on the script and on the model.
type differential struct {
	*lab
	world   *world
	model   *model
	counted script // the script with counters, "" to run without
	hits    []int64

	requests, checks, batches, decided, denied, sameKey int
	replies                                             [replyNotEvaluated + 1]int
}

func newDifferential(l *lab, seed uint64) *differential {
	l.clear()
	return &differential{lab: l, world: newWorld(seed), model: newModel()}
}

func (d *differential) run(requests int) {
	d.Helper()
	now := int64(epoch)
	for d.requests < requests {
		now = d.world.step(now)
		d.at(now)
		d.world.estimate = d.world.guess(now)
		for range d.world.IntN(3) {
			d.plantStranger()
		}
		d.one(d.world.requests(now))
	}
}

func (d *differential) plantStranger() {
	d.Helper()
	k := keyNumber(d.world.IntN(randomKeys))
	s := d.world.stranger()
	r := record{value: s.value}
	if s.ttl > 0 {
		r.expire = d.now + s.ttl
	}
	d.model.records[k] = r
	if s.value != "" {
		d.lab.plantBytes(k, []byte(s.value), s.ttl)
		return
	}
	d.do("DEL", keyName(k))
	d.do("RPUSH", keyName(k), "an element")
	d.do("PEXPIRE", keyName(k), s.ttl)
}

// one runs a batch on both and compares.
func (d *differential) one(batch []timed) {
	d.Helper()
	var got [][]limit.Verdict
	now, foreign := d.send(batch)
	for _, a := range batch {
		got = append(got, verdicts(a.Ask))
	}
	if now != d.now {
		d.Fatalf("the script's time is %d, want the clock's %d", now, d.now)
	}
	if want := d.model.batch(now, batch); foreign != want {
		d.Fatalf("batch %d: %d foreign strings were met, want %d", d.batches, foreign, want)
	}
	for i, a := range batch {
		if diff := cmp.Diff(verdicts(a.Ask), got[i]); diff != "" {
			d.Fatalf("batch %d, request %d: verdicts (-model +script):\n%s%s", d.batches, i, diff, describe(a))
		}
		d.count(a.Ask)
	}
	d.batches++
	d.compareKeys()
}

func (d *differential) count(a *limit.Ask) {
	d.requests++
	d.checks += len(a.Checks)
	seen, denied, decided := map[limit.Key]bool{}, a.Denied, false
	for i := range a.Checks {
		c := &a.Checks[i]
		if seen[c.Key] {
			seen[limit.Key{}] = true
		}
		seen[c.Key] = true
		denied = denied || c.Verdict.Outcome == limit.NotEvaluated ||
			c.Kind == limit.Enforced && c.Verdict.Outcome == limit.Deny
		decided = decided || c.Verdict.Outcome != limit.Undecided
		d.replies[replyCode(c.Verdict)]++
	}
	if seen[limit.Key{}] {
		d.sameKey++
	}
	if decided {
		d.decided++
		if denied {
			d.denied++
		}
	}
}

func replyCode(v limit.Verdict) int {
	switch {
	case v.Class == limit.ClassLate:
		return replyLate
	case v.Class == limit.ClassStale:
		return replyStale
	case v.Class == limit.ClassLayout:
		return replyNewer
	case v.Outcome == limit.Undecided:
		return replyUndecided
	case v.Outcome == limit.NotEvaluated:
		return replyNotEvaluated
	case v.Cause == limit.CauseTooLarge:
		return replyNever
	case v.Outcome == limit.Deny:
		return replyDeny
	}
	return replyAllow
}

// send runs the batch with the counting script three times out of four.
func (d *differential) send(batch []timed) (now, foreign int64) {
	d.Helper()
	if d.counted.text == "" || d.batches%4 == 0 {
		return d.lab.batch(d.world.estimate, batch...)
	}
	plain := d.script
	d.script = d.counted
	parts, err := d.evalsha(d.world.estimate, batch).StringSlice()
	d.script = plain
	if err != nil {
		d.breakOff(err)
	}
	var r reader
	r.open(parts[1])
	for i := range d.hits {
		d.hits[i] += r.next()
	}
	if r.err != nil || r.n != 0 {
		d.breakOff(fmt.Errorf("block counts: %w, %d left", r.err, r.n))
	}
	return d.answer(parts[0], batch)
}

// dumpScript answers all values and TTLs of KEYS.
const dumpScript = `local ttl = {} for i, k in ipairs(KEYS) do ttl[i] = redis.call('PTTL', k) end
return { redis.call('MGET', unpack(KEYS)), ttl }`

// compareKeys wants every key to hold the same bytes for the same time.
func (d *differential) compareKeys() {
	d.Helper()
	args := []any{"EVAL", dumpScript, randomKeys}
	for k := range randomKeys {
		args = append(args, keyName(keyNumber(k)))
	}
	dump := d.do(args...).([]any)
	values, ttls := dump[0].([]any), dump[1].([]any)
	d.model.expireAt(d.now)
	for i := range randomKeys {
		r, ok := d.model.records[keyNumber(i)]
		ttl := int64(-2)
		switch {
		case ok && r.expire == 0:
			ttl = -1
		case ok:
			ttl = r.expire - d.now
		}
		value, _ := values[i].(string)
		if value != r.value || ttls[i] != ttl {
			d.Fatalf("batch %d: key %d holds %q for %v ms, want %q for %d", d.batches-1, i, value, ttls[i], r.value, ttl)
		}
	}
}

// describe says what a request was, for a failure's text.
func describe(a timed) string {
	var b strings.Builder
	fmt.Fprintf(&b, "not after %d, denied elsewhere %v\n", a.notAfter, a.Denied)
	rules := map[*limit.Params]int{}
	for i := range a.Checks {
		c := &a.Checks[i]
		if _, ok := rules[c.Params]; !ok {
			rules[c.Params] = len(rules)
			fmt.Fprintf(&b, "rule %d: %+v\n", rules[c.Params], *c.Params)
		}
		fmt.Fprintf(&b, "%v of %d under rule %d, key ending %x, overdraw %v\n",
			c.Kind, c.Cost, rules[c.Params], c.Key.Digest[14:], c.Overdraw)
	}
	return b.String()
}

// TestWorldMakesRequestsInOrder holds the generator to what an Ask promises.
func TestWorldMakesRequestsInOrder(t *testing.T) {
	w := newWorld(seed(t))
	for range 1000 {
		for _, a := range w.requests(epoch) {
			if !slices.IsSortedFunc(a.Checks, func(x, y limit.Check) int { return int(x.Kind) - int(y.Kind) }) {
				t.Fatalf("the kinds are out of order:\n%s", describe(a))
			}
		}
	}
}
