package authority

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/weir-rl/weir/pkg/limit"
)

// encodeReply writes what the script would answer.
func encodeReply(ints []int64) string {
	b := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(len(ints)))
	for _, v := range ints {
		b = appendInt(b, v)
	}
	return string(b)
}

func TestDecodeReply(t *testing.T) {
	good := []int64{epoch, 2, replyAllow, 7, 1_000, replyDeny, 0, 300, replyNever, 0, -1}
	now, foreign, verdicts, err := decodeReply(encodeReply(good), 3, nil)
	if err != nil || now != epoch || foreign != 2 {
		t.Errorf("decodeReply = %d, %d, %v, want %d, 2 and no error", now, foreign, err, int64(epoch))
	}
	if want := []limit.Verdict{allowed(7, 1_000), denied(300), never(-1)}; !slices.Equal(verdicts, want) {
		t.Errorf("verdicts %+v, want %+v", verdicts, want)
	}
	whole := encodeReply(good)
	for name, reply := range map[string]string{
		"nothing":                   "",
		"no array":                  "\x01",
		"too few integers":          encodeReply(good[:8]),
		"too many integers":         encodeReply(append(slices.Clone(good), 1, 1, 1)),
		"truncated":                 whole[:len(whole)-1],
		"bytes behind":              whole + "\x00",
		"an unknown verdict":        encodeReply([]int64{epoch, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0}),
		"a negative remaining":      encodeReply([]int64{epoch, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0}),
		"a reset that is too small": encodeReply([]int64{epoch, 0, 0, 0, -2, 0, 0, 0, 0, 0, 0}),
		"a number of 2^53":          encodeReply([]int64{epoch, 0, 0, limit.Exact, 0, 0, 0, 0, 0, 0, 0}),
		"a string":                  "\x9b\xa1x" + whole[5:],
		"a count that is no count":  "\xdd\xff\xff\xff\xff",
	} {
		if _, _, vs, err := decodeReply(reply, 3, nil); err == nil {
			t.Errorf("%s: decodeReply gives %+v, want an error", name, vs)
		}
	}
}

// TestReaderReadsEveryForm: MessagePack has several forms for one integer, and
// stores differ in which they choose.
func TestReaderReadsEveryForm(t *testing.T) {
	const ints = "\x05\xff\xe0\xcc\xff\xcd\x01\x00\xce\x00\x01\x00\x00\xcf\x00\x1f\xff\xff\xff\xff\xff\xff" +
		"\xd0\xff\xd1\xff\x00\xd2\xff\xff\xff\xff\xd3\xff\xff\xff\xff\xff\xff\xff\xfe"
	want := []int64{5, -1, -32, 255, 256, 65_536, limit.Exact - 1, -1, -256, -1, -2}
	for _, head := range []string{"\x9b", "\xdc\x00\x0b", "\xdd\x00\x00\x00\x0b"} {
		var r reader
		r.open(head + ints)
		for i, w := range want {
			if got := r.next(); got != w || r.err != nil {
				t.Errorf("integer %d = %d, %v, want %d", i, got, r.err, w)
			}
		}
		if r.n != 0 || len(r.b) != 0 {
			t.Errorf("%d integers and %d bytes are left, want none", r.n, len(r.b))
		}
	}
}

// FuzzDecodeReply: whatever a store answers, decoding never panics, and what it
// accepts is what the script could have said.
func FuzzDecodeReply(f *testing.F) {
	f.Add(encodeReply([]int64{epoch, 2, replyAllow, 7, 1_000, replyDeny, 0, 300}), 2)
	f.Add(encodeReply([]int64{epoch, 0, replyNever, 0, -1}), 1)
	f.Add("\x95\xcf\x00\x00\x01\xa3\x18\x5c\x50\x00\x00\x03\x00\x00", 1)
	f.Add("\x9f", 3)
	f.Fuzz(func(t *testing.T, reply string, checks int) {
		if checks < 0 || checks > 2*maxChecks {
			return
		}
		now, foreign, verdicts, err := decodeReply(reply, checks, nil)
		if err != nil {
			return
		}
		if len(verdicts) != checks {
			t.Fatalf("%d verdicts for %d checks", len(verdicts), checks)
		}
		ints := []int64{now, foreign}
		for _, v := range verdicts {
			if v.Remaining < 0 || v.Reset < -1 || v.Retry < -1 || v.Remaining >= limit.Exact || v.Reset >= limit.Exact {
				t.Fatalf("verdict %+v is out of range", v)
			}
			if v.Outcome == limit.Allow && v.Class != limit.ClassNone {
				t.Fatalf("verdict %+v allows with a class", v)
			}
			ints = append(ints, int64(replyCode(v)), v.Remaining, v.Reset)
		}
		_, _, again, err := decodeReply(encodeReply(ints), checks, nil)
		if err != nil || !slices.Equal(again, verdicts) {
			t.Fatalf("written again it is %+v, %v, want %+v", again, err, verdicts)
		}
	})
}
