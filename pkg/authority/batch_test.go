package authority

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

// TestBatchEqualsItsRequestsOneByOne: that requests travel together is no
// business of anybody's. A batch must answer and leave behind what its
// requests would, sent one after the other at the same instant. It is tested
// on the model, which the script equals.
func TestBatchEqualsItsRequestsOneByOne(t *testing.T) {
	w := newWorld(seed(t))
	together := newModel()
	now, rounds := int64(epoch), 20_000
	if testing.Short() {
		rounds = 2000
	}
	for round := range rounds {
		now = w.step(now)
		w.estimate = w.guess(now)
		together.expireAt(now)
		if w.chance(20) {
			s := w.stranger()
			together.records[keyNumber(w.IntN(randomKeys))] = record{s.value, now + max(1, s.ttl)}
		}
		single := &model{maps.Clone(together.records)}
		batch := w.requests(now)
		batch = batch[:min(len(batch), 4)]
		before := maps.Clone(together.records)
		together.batch(now, batch)
		for i, a := range batch {
			got := verdicts(a.Ask)
			single.batch(now, batch[i:i+1])
			if want := verdicts(a.Ask); !slices.Equal(want, got) {
				diff := cmp.Diff(want, got)
				t.Fatalf("round %d, request %d of %d: verdicts (-alone +in the batch):\n%s%s", round, i, len(batch), diff, story(before, now, batch))
			}
		}
		evenOutTTL(before, single.records, together.records, now, batch)
		if !maps.Equal(single.records, together.records) {
			diff := cmp.Diff(single.records, together.records, cmp.AllowUnexported(record{}))
			t.Fatalf("round %d: stored (-one by one +batch):\n%s%s", round, diff, story(before, now, batch))
		}
	}
}

// evenOutTTL evens out the one difference that there may be. A rule older than
// a state never shortens its TTL: one by one, not even that which its own last
// request has set, so a charge that is given back leaves a longer one. A batch
// writes once: for at least what the newest rules in it ask for, or what was
// there when there is none, and for no longer than any asks for.
func evenOutTTL(before, single, together map[limit.Key]record, now int64, batch []timed) {
	for _, a := range batch {
		for i := range a.Checks {
			k := a.Checks[i].Key
			got, want := together[k], single[k]
			s, form := limit.DecodeState([]byte(got.value))
			if form != limit.Known || s.Unused() || got.value != want.value {
				continue
			}
			older, least, most := false, before[k].expire, before[k].expire
			for _, p := range rulesOf(batch, k) {
				expire := now + s.TTL(p, now)
				if p.Version == s.Version {
					least = min(least, expire)
				}
				most = max(most, expire)
				older = older || p.Version < s.Version
			}
			if older && least <= got.expire && got.expire <= most {
				together[k] = want
			}
		}
	}
}

func rulesOf(batch []timed, k limit.Key) []*limit.Params {
	var rules []*limit.Params
	for _, a := range batch {
		for i := range a.Checks {
			if a.Checks[i].Key == k {
				rules = append(rules, a.Checks[i].Params)
			}
		}
	}
	return rules
}

func story(before map[limit.Key]record, now int64, batch []timed) string {
	text := ""
	keys := map[limit.Key]bool{}
	for _, a := range batch {
		text += describe(a)
		for i := range a.Checks {
			keys[a.Checks[i].Key] = true
		}
	}
	for k := range keys {
		if r, ok := before[k]; ok {
			s, _ := limit.DecodeState([]byte(r.value))
			text += cmp.Diff(nil, map[limit.Key]limit.State{k: s})
		}
	}
	return text
}
