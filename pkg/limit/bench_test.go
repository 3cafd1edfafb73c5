package limit_test

import (
	"fmt"
	"testing"

	"github.com/weir-rl/weir/pkg/limit"
)

func BenchmarkApply(b *testing.B) {
	for _, x := range []struct {
		name string
		p    *limit.Params
	}{{"window", window(1<<30, hour)}, {"bucket", bucket(1_000_000, second, 1_000_000)}} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			var s limit.State
			now := int64(t0)
			for b.Loop() {
				now++
				s, _ = limit.Apply(s, x.p, now, 1)
			}
		})
	}
}

// request returns a request of n checks, each on a key of its own, and the
// slots of their keys.
func request(n int) (*limit.Ask, func(*limit.Check) *limit.Slot) {
	rules := []*limit.Params{window(1<<30, hour), bucket(1_000_000, second, 1_000_000)}
	slots := make([]limit.Slot, n)
	a := new(limit.Ask)
	for i := range n {
		a.Checks = append(a.Checks, limit.Check{Key: key(byte(i)), Params: rules[i%2], Cost: 1, Kind: limit.Enforced, Tag: int32(i)})
	}
	return a, func(c *limit.Check) *limit.Slot { return &slots[c.Tag] }
}

func BenchmarkEvaluate(b *testing.B) {
	for _, n := range []int{1, 3, 8} {
		b.Run(fmt.Sprintf("checks=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			a, slot := request(n)
			now := int64(t0)
			for b.Loop() {
				now++
				limit.Evaluate(a, now, now, slot)
			}
		})
	}
}

func BenchmarkKey(b *testing.B) {
	for _, k := range keys[:2] {
		b.Run(k.name, func(b *testing.B) {
			b.ReportAllocs()
			m := k.maker()
			for b.Loop() {
				m.Key(k.entries)
			}
		})
	}
}

func BenchmarkDecodeState(b *testing.B) {
	s := limit.AppendState(nil, &limit.State{Algorithm: limit.TokenBucket, Used: 1000, Updated: t0})
	b.ReportAllocs()
	for b.Loop() {
		limit.DecodeState(s)
	}
}

// What runs once for each check of each request leaves nothing to collect.
func TestAllocations(t *testing.T) {
	a, slot := request(8)
	now := int64(t0)
	m, buf := keys[1].maker(), make([]byte, 0, 64)
	st := limit.State{Algorithm: limit.TokenBucket, Used: 1000, Updated: t0}
	stored := limit.AppendState(nil, &st)
	for _, x := range []struct {
		name string
		f    func()
	}{
		{"Evaluate", func() { now++; limit.Evaluate(a, now, now, slot) }},
		{"Key", func() { m.Key(keys[1].entries) }},
		{"Append", func() { k := key('k'); k.Append(buf, "eu:") }},
		{"AppendState", func() { limit.AppendState(buf, &st) }},
		{"DecodeState", func() { limit.DecodeState(stored) }},
	} {
		if n := testing.AllocsPerRun(100, x.f); n != 0 {
			t.Errorf("%s allocates %v times, want 0", x.name, n)
		}
	}
}
