package rls

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// twin is RateLimitRequest with bytes instead of strings: a stock decoder of
// it says what a message means when its strings are not valid UTF-8.
var twin = func() protoreflect.MessageDescriptor {
	field := func(name string, num int32, typ descriptorpb.FieldDescriptorProto_Type, message string, repeated bool) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{
			Name: proto.String(name), Number: proto.Int32(num), Type: typ.Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		if message != "" {
			f.TypeName = proto.String(".twin." + message)
		}
		if repeated {
			f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}
		return f
	}
	message := func(name string, fields ...*descriptorpb.FieldDescriptorProto) *descriptorpb.DescriptorProto {
		return &descriptorpb.DescriptorProto{Name: proto.String(name), Field: fields}
	}
	const (
		str = descriptorpb.FieldDescriptorProto_TYPE_BYTES
		msg = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
		u32 = descriptorpb.FieldDescriptorProto_TYPE_UINT32
		u64 = descriptorpb.FieldDescriptorProto_TYPE_UINT64
		i32 = descriptorpb.FieldDescriptorProto_TYPE_INT32
		yes = descriptorpb.FieldDescriptorProto_TYPE_BOOL
	)
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("twin.proto"), Package: proto.String("twin"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			message("Request", field("domain", 1, str, "", false), field("descriptors", 2, msg, "Descriptor", true), field("hits", 3, u32, "", false)),
			message("Descriptor", field("entries", 1, msg, "Entry", true), field("limit", 2, msg, "Override", false),
				field("hits", 3, msg, "U64", false), field("negative", 4, yes, "", false)),
			message("Entry", field("key", 1, str, "", false), field("value", 2, str, "", false)),
			message("Override", field("requests", 1, u32, "", false), field("unit", 2, i32, "", false), field("multiplier", 3, msg, "U32", false)),
			message("U32", field("value", 1, u32, "", false)),
			message("U64", field("value", 1, u64, "", false)),
		},
	}, nil)
	if err != nil {
		panic(err)
	}
	return file.Messages().ByName("Request")
}()

// meaning is what a stock decoder reads, within our bounds.
func meaning(m protoreflect.Message) pipeline.Request {
	get := func(m protoreflect.Message, name protoreflect.Name) protoreflect.Value {
		return m.Get(m.Descriptor().Fields().ByName(name))
	}
	has := func(m protoreflect.Message, name protoreflect.Name) bool {
		return m.Has(m.Descriptor().Fields().ByName(name))
	}
	r := pipeline.Request{Domain: string(get(m, "domain").Bytes()), HitsAddend: uint32(get(m, "hits").Uint())}
	list := get(m, "descriptors").List()
	for i := range list.Len() {
		dm := list.Get(i).Message()
		var d pipeline.Descriptor
		entries := get(dm, "entries").List()
		for j := range entries.Len() {
			if j == MaxEntries {
				r.Malformed = true
				break
			}
			em := entries.Get(j).Message()
			d.Entries = append(d.Entries, limit.Entry{Key: string(get(em, "key").Bytes()), Value: string(get(em, "value").Bytes())})
		}
		if has(dm, "hits") {
			d.HasHits, d.Hits = true, get(get(dm, "hits").Message(), "value").Uint()
		}
		d.Negative = get(dm, "negative").Bool()
		if has(dm, "limit") {
			om := get(dm, "limit").Message()
			o := &pipeline.Override{RequestsPerUnit: uint32(get(om, "requests").Uint()), Multiplier: 1}
			if u := get(om, "unit").Int(); u >= 1 && u <= 6 {
				o.Unit = policy.Unit(u)
			}
			if has(om, "multiplier") {
				o.Multiplier = max(1, uint32(get(get(om, "multiplier").Message(), "value").Uint()))
			}
			d.Limit = o
		}
		if i < MaxDescriptors {
			r.Descriptors = append(r.Descriptors, d)
		} else {
			r.Malformed = true
		}
	}
	return r
}

// meaningOf is the same of a generated message.
func meaningOf(t *testing.T, m *rlsv3.RateLimitRequest) pipeline.Request {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	tm := dynamicpb.NewMessage(twin)
	if err := proto.Unmarshal(b, tm); err != nil {
		t.Fatal(err)
	}
	return meaning(tm)
}

func same(t *testing.T, what string, want, got pipeline.Request) {
	t.Helper()
	if len(got.Descriptors) == 0 {
		got.Descriptors = nil // a pooled request keeps an empty slice
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// check holds the decoder to both stock decoders for one message.
func check(t *testing.T, d *decoder, b []byte) {
	t.Helper()
	tm := dynamicpb.NewMessage(twin)
	twinErr := proto.Unmarshal(b, tm)
	gm := new(rlsv3.RateLimitRequest)
	genErr := proto.Unmarshal(b, gm)
	scratch := bytes.Clone(b)
	err := d.decode(scratch)
	// Nothing may point into the transport's buffer.
	for i := range scratch {
		scratch[i] ^= 0x55
	}
	switch {
	case (err == nil) != (twinErr == nil):
		t.Fatalf("decode(%x) = %v, a stock decoder says %v", b, err, twinErr)
	case genErr == nil && err != nil:
		t.Fatalf("decode(%x) = %v, the generated decoder takes it", b, err)
	case err != nil:
		return
	}
	same(t, fmt.Sprintf("decode(%x) against a stock decoder", b), meaning(tm), d.request)
	if genErr == nil {
		same(t, fmt.Sprintf("decode(%x) against the generated decoder", b), meaningOf(t, gm), d.request)
	}
}

func full() *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{
		Domain:     "edge",
		HitsAddend: 7,
		Descriptors: []*ratelimitv3.RateLimitDescriptor{
			{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "a"}, {Key: "path", Value: "/ä"}}},
			{},
			{
				Entries:        []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "only"}, {}},
				HitsAddend:     wrapperspb.UInt64(0),
				IsNegativeHits: true,
				Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_HOUR, UnitMultiplier: wrapperspb.UInt32(3),
				},
			},
			{HitsAddend: wrapperspb.UInt64(1 << 63), Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 99}},
		},
	}
}

func wire(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// field is one length-delimited field.
func field(num protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), bytes.Join(parts, nil))
}

func varint(num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
}

// oddMessages are forms that a decoder written by hand could get wrong.
func oddMessages(t testing.TB) map[string][]byte {
	entry := func(k, v string) []byte { return field(1, field(1, []byte(k)), field(2, []byte(v))) }
	head := field(1, []byte("edge"))
	group := func(num protowire.Number, body ...[]byte) []byte {
		b := protowire.AppendTag(nil, num, protowire.StartGroupType)
		b = append(b, bytes.Join(body, nil)...)
		return protowire.AppendTag(b, num, protowire.EndGroupType)
	}
	return map[string][]byte{
		"full":                      wire(t, full()),
		"empty":                     nil,
		"domain twice":              append(bytes.Clone(head), field(1, []byte("last"))...),
		"domain as a number":        varint(1, 7),
		"domain as a group":         group(1, varint(1, 1)),
		"hits as bytes":             field(3, []byte{1}),
		"hits of 64 bits":           varint(3, 1<<33|5),
		"hits twice":                append(varint(3, 5), varint(3, 0)...),
		"unknown fields":            append(bytes.Clone(head), append(varint(99, 5), append(field(100, []byte("x")), protowire.AppendFixed64(protowire.AppendTag(nil, 101, protowire.Fixed64Type), 1)...)...)...),
		"unknown group":             append(bytes.Clone(head), group(20, varint(1, 1), group(2, field(7)))...),
		"group of other end":        append(protowire.AppendTag(nil, 20, protowire.StartGroupType), protowire.AppendTag(nil, 21, protowire.EndGroupType)...),
		"open group":                protowire.AppendTag(nil, 20, protowire.StartGroupType),
		"end without group":         protowire.AppendTag(nil, 20, protowire.EndGroupType),
		"wire type 6":               {1<<3 | 6, 0},
		"wire type 7":               {1<<3 | 7, 0},
		"field number 0":            {0, 0},
		"largest field number":      varint(protowire.MaxValidNumber, 1),
		"field number too large":    varint(protowire.MaxValidNumber+1, 1),
		"padded tag":                {0x8a, 0x80, 0x00, 1, 'd'},
		"varint of 11 bytes":        append(protowire.AppendTag(nil, 3, protowire.VarintType), 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1),
		"length beyond the end":     {1<<3 | 2, 9, 'x'},
		"truncated":                 wire(t, full())[:20],
		"limit twice is merged":     append(bytes.Clone(head), field(2, field(2, varint(1, 5), varint(2, 3), field(3, varint(1, 9))), field(2, varint(2, 2), field(3)))...),
		"hits wrapper twice":        field(2, field(3, varint(1, 5)), field(3)),
		"hits wrapper of bytes":     field(2, field(3, field(1, []byte{1}))),
		"multiplier 0":              field(2, field(2, field(3, varint(1, 0)))),
		"multiplier of 64 bits":     field(2, field(2, field(3, varint(1, 1<<32|2)))),
		"multiplier 2^32":           field(2, field(2, field(3, varint(1, 1<<32)))),
		"unit week":                 field(2, field(2, varint(2, 7))),
		"unit negative":             field(2, field(2, varint(2, 1<<64-1))),
		"unit of 64 bits":           field(2, field(2, varint(2, 1<<32|1))),
		"negative as 2":             field(2, varint(4, 2)),
		"negative as 2^40":          field(2, varint(4, 1<<40)),
		"negative twice":            field(2, varint(4, 1), varint(4, 0)),
		"entry with key twice":      field(2, field(1, field(1, []byte("a")), field(1, []byte("b")))),
		"0xFF in the domain":        field(1, []byte("\xff")),
		"0xFF in a key":             append(bytes.Clone(head), field(2, entry("\xff", "v"))...),
		"0xFF in a value":           append(bytes.Clone(head), field(2, entry("k", "a\xffb"))...),
		"surrogate half in a value": append(bytes.Clone(head), field(2, entry("k", "\xed\xa0\x80"))...),
		"0xFF in an unknown field":  append(bytes.Clone(head), field(50, []byte("\xff"))...),
		"descriptors at the bound":  append(bytes.Clone(head), bytes.Repeat(field(2, entry("k", "v")), MaxDescriptors)...),
		"descriptors above it":      append(bytes.Clone(head), bytes.Repeat(field(2, entry("k", "v"), field(2, varint(1, 1))), MaxDescriptors+1)...),
		"bad descriptor above it":   append(bytes.Repeat(field(2), MaxDescriptors+1), field(2, []byte{0xff})...),
		"entries at the bound":      field(2, bytes.Repeat(entry("k", "v"), MaxEntries)),
		"entries above it":          append(field(2, bytes.Repeat(entry("k", "v"), MaxEntries+1)), field(2, entry("next", ""))...),
		"bad entry above it":        field(2, bytes.Repeat(field(1), MaxEntries+1), field(1, []byte{0xff})),
	}
}

func TestDecodeAgainstStockDecoders(t *testing.T) {
	var d decoder // one for all, as pooled ones are
	for name, b := range oddMessages(t) {
		t.Run(name, func(t *testing.T) { check(t, &d, b) })
	}
}

func TestDecodeKeepsBytesThatAreNoUTF8(t *testing.T) {
	var d decoder
	whole := append(field(1, []byte("edge")), field(2, field(1, field(1, []byte("k\x80")), field(2, []byte("\xff\x00\xfe"))))...)
	if err := proto.Unmarshal(whole, new(rlsv3.RateLimitRequest)); err == nil {
		t.Fatal("the generated decoder takes bytes that are no UTF-8; this decoder has lost its reason")
	}
	if err := d.decode(whole); err != nil {
		t.Fatal(err)
	}
	want := limit.Entry{Key: "k\x80", Value: "\xff\x00\xfe"}
	if got := d.request.Descriptors[0].Entries[0]; got != want {
		t.Errorf("entry = %q, want %q", got, want)
	}
}

// TestDecodeBoundsMemory sends the shortest descriptors and entries there are:
// two bytes each, which would become 80 and 32.
func TestDecodeBoundsMemory(t *testing.T) {
	var d decoder
	many := bytes.Repeat(field(2, bytes.Repeat(field(1), 1000)), 1000)
	if err := d.decode(many); err != nil {
		t.Fatal(err)
	}
	if n := len(d.request.Descriptors); n != MaxDescriptors || !d.request.Malformed {
		t.Errorf("descriptors = %d, malformed = %v, want %d, true", n, d.request.Malformed, MaxDescriptors)
	}
	if n := len(d.entries); n != MaxDescriptors*MaxEntries {
		t.Errorf("entries = %d, want %d", n, MaxDescriptors*MaxEntries)
	}
	d.reset()
	if d.entries != nil {
		t.Errorf("a pooled request keeps %d entries, want none above %d", cap(d.entries), maxPooledEntries)
	}
}

func TestResetForgetsTheMessage(t *testing.T) {
	var d decoder
	if err := d.decode(wire(t, full())); err != nil {
		t.Fatal(err)
	}
	d.reset()
	for _, e := range d.entries[:cap(d.entries)] {
		if e != (limit.Entry{}) {
			t.Errorf("an entry stayed: %q", e)
		}
	}
	for _, desc := range d.request.Descriptors[:cap(d.request.Descriptors)] {
		if diff := cmp.Diff(pipeline.Descriptor{}, desc); diff != "" {
			t.Errorf("a descriptor stayed: %s", diff)
		}
	}
}

func TestLongValuesAreKept(t *testing.T) {
	var d decoder
	long := strings.Repeat("x", 60<<10)
	m := full()
	m.Descriptors[0].Entries[0].Value = long
	if err := d.decode(wire(t, m)); err != nil {
		t.Fatal(err)
	}
	if got := d.request.Descriptors[0].Entries[0].Value; got != long || d.request.Malformed {
		t.Errorf("a value of %d bytes came out as %d, malformed = %v", len(long), len(got), d.request.Malformed)
	}
}

// FuzzDecode holds the decoder to stock ones: what they take means the same,
// strings that are no UTF-8 included, and what they refuse is refused.
func FuzzDecode(f *testing.F) {
	for _, b := range oddMessages(f) {
		f.Add(b)
	}
	var d decoder
	f.Fuzz(func(t *testing.T, b []byte) { check(t, &d, b) })
}

// FuzzDecodeStructured fuzzes values rather than bytes, so that most messages
// are good ones, and sends them through AppendRequest too.
func FuzzDecodeStructured(f *testing.F) {
	f.Add("edge", "k", "v", "k2", "\xff", uint32(0), uint64(1)<<63, true, true, uint32(5), uint8(3), uint32(2))
	f.Add("", "", "", "", "", uint32(7), uint64(0), false, false, uint32(0), uint8(0), uint32(0))
	var d decoder
	f.Fuzz(func(t *testing.T, domain, k1, v1, k2, v2 string, hits uint32, own uint64, has, negative bool, requests uint32, unit uint8, multiplier uint32) {
		want := pipeline.Request{
			Domain: domain, HitsAddend: hits,
			Descriptors: []pipeline.Descriptor{
				{Entries: []limit.Entry{{Key: k1, Value: v1}, {Key: k2, Value: v2}}, HasHits: has, Negative: negative},
				{Entries: []limit.Entry{{Key: k2, Value: v1}}},
				{Limit: &pipeline.Override{RequestsPerUnit: requests, Unit: policy.Unit(unit % 7), Multiplier: max(1, multiplier)}},
			},
		}
		if has {
			want.Descriptors[0].Hits = own
		}
		b, err := AppendRequest(nil, &want)
		if err != nil {
			t.Fatal(err)
		}
		check(t, &d, b)
		same(t, "decode(AppendRequest(r))", want, d.request)
	})
}
