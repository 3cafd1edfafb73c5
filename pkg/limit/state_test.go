package limit_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
)

const goldenHead = `# What is stored of a key, byte by byte, and how keys are named. Both outlive
# the program that wrote them, and other releases read them at the same time.
#
# A change in this file costs users their counts: every budget starts afresh on
# the day of the upgrade, and twice over while old and new sidecars run side by
# side. Another layout needs another limit.Layout (and LAYOUT in debit.lua), and
# code that reads the old one; other keys need another number in "weir:1:".
# Only a line for something new may be added freely, with
#
#	go test ./pkg/limit -run Golden -update

`

// golden compares lines with a file of testdata, or rewrites it.
func golden(t *testing.T, name, head string, lines []string) {
	t.Helper()
	file, got := filepath.Join("testdata", name), head+strings.Join(lines, "\n")+"\n"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file) //nolint:gosec // a file of this package
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), read its head before you change it:\n%s", file, diff)
	}
}

// states are one of each body, with a different digit in each byte.
var states = []struct {
	name string
	is   limit.State
}{
	{"fixed_window", limit.State{
		Algorithm: limit.FixedWindow, Version: 0x010203040506,
		Used: 0x11121314151617, End: 0x212223242526, Length: 0x313233343536,
	}},
	{"sliding_window", limit.State{
		Algorithm: limit.SlidingWindow, Version: 0x010203040506,
		Used: 0x11121314151617, Previous: 0x18191a1b1c1d1e, End: 0x212223242526, Length: 0x313233343536,
	}},
	{"token_bucket", limit.State{
		Algorithm: limit.TokenBucket, Version: 0x010203040506,
		Used: 0x11121314151617, Remainder: 0x18191a1b1c1d1e, Updated: 0x212223242526,
	}},
	{"sliding_log", limit.State{
		Algorithm: limit.SlidingLog, Version: 0x010203040506, Used: 0x0102 + 0xffff,
		Entries: []limit.LogEntry{{0x212223242526, 0x0102}, {0x212223242527, 0xffff}},
	}},
	{"concurrency", limit.State{
		Algorithm: limit.Concurrency, Version: 0x010203040506,
		Permits: []limit.Permit{{[16]byte{0: 1, 15: 0xff}, 0x212223242526}, {[16]byte{2}, 0x212223242527}},
	}},
	{"the least", limit.State{Algorithm: limit.FixedWindow}},
	{"the largest", limit.State{
		Algorithm: limit.TokenBucket, Version: limit.MaxVersion,
		Used: limit.Exact - 1, Remainder: limit.Exact - 1, Updated: 1<<48 - 1,
	}},
	{"no entries", limit.State{Algorithm: limit.SlidingLog, Version: 1}},
	{"no permits", limit.State{Algorithm: limit.Concurrency, Version: 1}},
}

func TestGolden(t *testing.T) {
	var lines []string
	for _, s := range states {
		b := limit.AppendState(nil, &s.is)
		lines = append(lines, fmt.Sprintf("state  %-14s  %s", s.name, hex.EncodeToString(b)))
		got, form := limit.DecodeState(b)
		if diff := cmp.Diff(s.is, got); form != limit.Known || diff != "" {
			t.Errorf("%s: decoded as %s (-want +got):\n%s", s.name, form, diff)
		}
	}
	lines = append(lines, "")
	for _, k := range keys {
		made := k.maker().Key(k.entries)
		lines = append(lines,
			fmt.Sprintf("image  %-20s  %q", k.name, k.maker().AppendPreImage(nil, k.entries)),
			fmt.Sprintf("key    %-20s  %s", k.name, made.Append(nil, k.scheme.Prefix)))
	}
	golden(t, "layout.golden", goldenHead, lines)
}

// S13: a window or a bucket stays within 28 bytes, so that its key costs a store
// no more than the next smaller allocation.
func TestStateSize(t *testing.T) {
	for _, s := range states {
		switch n := len(limit.AppendState(nil, &s.is)); {
		case s.is.Algorithm == limit.FixedWindow && n != 27, s.is.Algorithm == limit.TokenBucket && n != 28:
			t.Errorf("%s takes %d bytes", s.name, n)
		}
	}
}

func TestDecodeState(t *testing.T) {
	f := limit.AppendState(nil, &limit.State{Algorithm: limit.FixedWindow, Used: 1, End: t0, Length: minute})
	with := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return b
	}
	b := limit.AppendState(nil, &limit.State{Algorithm: limit.TokenBucket, Used: 1, Updated: t0})
	s := limit.AppendState(nil, &limit.State{Algorithm: limit.SlidingWindow, Used: 1, Previous: 1, End: t0, Length: minute})
	log := func(entries ...limit.LogEntry) []byte {
		return limit.AppendState(nil, &limit.State{Algorithm: limit.SlidingLog, Entries: entries})
	}
	rising := func(n int64) (entries []limit.LogEntry) {
		for at := range n {
			entries = append(entries, limit.LogEntry{Time: at, N: 1})
		}
		return entries
	}
	for _, x := range []struct {
		name string
		b    []byte
		want limit.Form
	}{
		{"a window", f, limit.Known},
		{"the next layout", with(f, 1, limit.Layout+1), limit.Newer},
		{"the next layout, of another length", append(with(f, 1, limit.Layout+1), 1, 2, 3), limit.Newer},
		{"the next layout, of an algorithm to come", with(with(f, 1, limit.Layout+1), 0, 'Z'), limit.Newer},
		{"the last layout", with(f, 1, 8), limit.Newer},
		{"a tab is text", with(f, 1, '\t'), limit.Foreign},
		{"layout 0", with(f, 1, 0), limit.Foreign},
		{"nothing", nil, limit.Foreign},
		{"a number", []byte("17"), limit.Foreign},
		{"a small letter", with(with(f, 1, limit.Layout+1), 0, 'f'), limit.Foreign},
		{"a header too short", f[:7], limit.Foreign},
		{"only a header", f[:8], limit.Foreign},
		{"a byte too few", f[:26], limit.Foreign},
		{"a byte too many", append(bytes.Clone(f), 0), limit.Foreign},
		{"no letter", with(f, 0, '@'), limit.Foreign},
		{"no algorithm of this layout", with(f, 0, 'Z'), limit.Foreign},
		{"a count of 2^53", with(f, 8, 0x20), limit.Foreign},
		{"a count below it", with(f, 8, 0x1f), limit.Known},
		{"a remainder of 2^53", with(b, 15, 0x20), limit.Foreign},
		{"a sliding window", s, limit.Known},
		{"its current count of 2^53", with(s, 8, 0x20), limit.Foreign},
		{"its previous count of 2^53", with(s, 15, 0x20), limit.Foreign},
		{"half an entry", []byte("L\x01\x00\x00\x00\x00\x00\x00half"), limit.Foreign},
		{"an entry", log(limit.LogEntry{Time: 2, N: 1}), limit.Known},
		{"two entries", log(limit.LogEntry{Time: 2, N: 1}, limit.LogEntry{Time: 3, N: 1}), limit.Known},
		{"two entries of one time", log(limit.LogEntry{Time: 2, N: 1}, limit.LogEntry{Time: 2, N: 1}), limit.Foreign},
		{"entries that go back", log(limit.LogEntry{Time: 2, N: 1}, limit.LogEntry{Time: 1, N: 1}), limit.Foreign},
		{"an entry of no hits", log(limit.LogEntry{Time: 2, N: 1}, limit.LogEntry{Time: 3}), limit.Foreign},
		{"as many entries as a log has", log(rising(limit.MaxLog)...), limit.Known},
		{"one more", log(rising(limit.MaxLog + 1)...), limit.Foreign},
		{"half a permit", []byte("C\x01\x00\x00\x00\x00\x00\x00half"), limit.Foreign},
	} {
		s, form := limit.DecodeState(x.b)
		if form != x.want {
			t.Errorf("%s: %s, want %s", x.name, form, x.want)
		}
		if form != limit.Known && !cmp.Equal(s, limit.State{}) {
			t.Errorf("%s: %+v, want an absent state", x.name, s)
		}
	}
}

func TestStatesRoundTrip(t *testing.T) {
	count, ms := rapid.Int64Range(0, limit.Exact-1), rapid.Int64Range(0, 1<<48-1)
	rapid.Check(t, func(t *rapid.T) {
		s := limit.State{
			Algorithm: rapid.SampledFrom([]limit.Algorithm{'F', 'S', 'B', 'L', 'C'}).Draw(t, "algorithm"),
			Version:   rapid.Uint64Range(0, limit.MaxVersion).Draw(t, "version"),
		}
		switch s.Algorithm {
		case limit.SlidingWindow:
			s.Previous = count.Draw(t, "previous")
			fallthrough
		case limit.FixedWindow:
			s.Used, s.End, s.Length = count.Draw(t, "used"), ms.Draw(t, "end"), ms.Draw(t, "length")
		case limit.TokenBucket:
			s.Used, s.Remainder, s.Updated = count.Draw(t, "used"), count.Draw(t, "remainder"), ms.Draw(t, "updated")
		case limit.SlidingLog:
			for at := range rapid.IntRange(0, 5).Draw(t, "entries") {
				// The first is long ago, so that there are later ones.
				e := limit.LogEntry{Time: int64(at) << 44, N: rapid.Int64Range(1, 1<<16-1).Draw(t, "n")}
				e.Time += rapid.Int64Range(0, 1<<44-1).Draw(t, "time")
				s.Used += e.N
				s.Entries = append(s.Entries, e)
			}
		case limit.Concurrency:
			for range rapid.IntRange(0, 5).Draw(t, "permits") {
				p := limit.Permit{Expiry: ms.Draw(t, "expiry")}
				copy(p.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
				s.Permits = append(s.Permits, p)
			}
		}
		b := limit.AppendState([]byte("before"), &s)
		got, form := limit.DecodeState(b[len("before"):])
		if diff := cmp.Diff(s, got); form != limit.Known || diff != "" {
			t.Fatalf("%x: %s (-want +got):\n%s", b, form, diff)
		}
	})
}

// FuzzDecodeState: what is read is written back as it was, and text is never
// taken for a newer layout, which nobody would overwrite.
func FuzzDecodeState(f *testing.F) {
	for _, s := range states {
		f.Add(limit.AppendState(nil, &s.is))
	}
	for _, s := range []string{"", "17", "F", "FOREIGN TEXT", "A\tB\tC\tD\tE", "K\r\nvalue\r\n", "F\x02 a later layout", "Z\x08\x00\x00\x00\x00\x00\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, form := limit.DecodeState(b)
		if form == limit.Newer && isText(b) {
			t.Errorf("DecodeState(%q) = newer, want foreign: it is text", b)
		}
		if form != limit.Known {
			if !cmp.Equal(s, limit.State{}) {
				t.Errorf("DecodeState(%x) = %+v, want an absent state", b, s)
			}
			return
		}
		if got := limit.AppendState(nil, &s); !bytes.Equal(got, b) {
			t.Errorf("%x was read as %+v and written as %x", b, s, got)
		}
	})
}

// isText says that all bytes are of printable text or white space.
func isText(b []byte) bool {
	for _, r := range string(b) {
		if r < '\t' || r > '\r' && r < ' ' || r == 0x7f || r == utf8.RuneError {
			return false
		}
	}
	return true
}

// FuzzEvaluate: whatever a store holds and whatever its clock says, a rule that
// a policy can compile is decided without a panic or an overflow, and leaves a
// state that can be stored.
func FuzzEvaluate(f *testing.F) {
	for _, s := range states {
		f.Add(limit.AppendState(nil, &s.is), true, uint32(10), uint8(1), uint32(20), uint32(20), uint64(1), int64(t0), uint32(3), uint8(0b10), uint8(0))
		f.Add(limit.AppendState(nil, &s.is), false, uint32(limit.MaxCost), uint8(255), uint32(limit.MaxCost), uint32(limit.MaxCost), uint64(9), int64(latest), uint32(limit.MaxCost), uint8(0b1111), uint8(1))
	}
	f.Fuzz(func(t *testing.T, stored []byte, fixed bool, n uint32, length uint8, burst, debt uint32, version uint64, now int64, cost uint32, flags, small uint8) {
		if now < 0 || now > latest {
			return // no store's clock is there
		}
		p := &limit.Params{
			Algorithm: limit.TokenBucket, Version: version & limit.MaxVersion, Limit: max(1, int64(n)),
			Window: lengthOf(length), Capacity: int64(burst), OverdrawCap: int64(debt),
		}
		if fixed {
			p.Algorithm, p.Capacity, p.OverdrawCap = limit.FixedWindow, p.Limit, p.Limit
		}
		if !p.Rate(p.Limit, p.Window) && !fixed {
			return // a load error
		}
		var slot limit.Slot
		slot.Load(stored)
		before, newer := slot.State, slot.Newer
		a := &limit.Ask{Denied: flags&0x80 != 0, Checks: []limit.Check{
			{Kind: limit.Refund, Cost: int64(small)},
			{Kind: limit.Enforced, Cost: int64(cost), Overdraw: flags&1 != 0},
			{Kind: limit.Quota, Cost: int64(cost >> 16), Overdraw: flags&2 != 0},
			{Kind: limit.Shadow, Cost: int64(small), Overdraw: flags&4 != 0},
		}}
		for i := range a.Checks {
			a.Checks[i].Params = p
		}
		limit.Evaluate(a, now, now, func(*limit.Check) *limit.Slot { return &slot })
		st := slot.State
		for i := range a.Checks {
			v := a.Checks[i].Verdict
			if newer != (v.Class == limit.ClassLayout) {
				t.Fatalf("check %d: %s of a state that is newer: %v", i, v.Class, newer)
			}
			if v.Remaining < 0 || v.Remaining > max(p.Limit, p.Capacity) || v.Reset < -1 || v.Retry < -1 || v.Reset >= limit.Exact+1<<48 {
				t.Fatalf("check %d: %+v of %+v, %+v", i, v, before, p)
			}
			if v.Outcome == limit.Deny && v.Cause == limit.CauseLimit && v.Retry < 1 {
				t.Fatalf("check %d: %+v of %+v, %+v", i, v, before, p)
			}
		}
		if slot.Dirty == nil {
			if !cmp.Equal(st, before) {
				t.Fatalf("%+v became %+v, and is not to be written", before, st)
			}
			return
		}
		if st.Used == 0 {
			return
		}
		if ttl := st.TTL(slot.Dirty, now); ttl <= 0 || ttl > limit.Exact+1<<48 {
			t.Fatalf("TTL %d of %+v at %d, %+v", ttl, st, now, p)
		}
		if st.Used < 0 || st.Used >= limit.Exact || st.Remainder < 0 || st.Remainder >= max(p.Den, 1) {
			t.Fatalf("%+v is out of bounds, was %+v, %+v", st, before, p)
		}
		most := p.MaxLevel()
		if st.Version > p.Version {
			most = max(most, before.Used) // what a newer rule's larger bucket held
		}
		if st.Algorithm == limit.TokenBucket && st.Used > most {
			t.Fatalf("level %d above %d, was %+v", st.Used, most, before)
		}
		got, form := limit.DecodeState(limit.AppendState(nil, &st))
		if form != limit.Known || !cmp.Equal(got, st) {
			t.Fatalf("%+v is written and read as %s %+v", st, form, got)
		}
	})
}

// lengthOf spreads a byte over the lengths that windows have.
func lengthOf(b uint8) int64 {
	units := []int64{second, minute, hour, day, 7 * day, 30 * day, year}
	if b == 255 {
		return 1 << 47
	}
	return units[int(b)%len(units)] * (1 + int64(b)/7*50)
}
