package rls

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/memory"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// readBack is what the generated decoder makes of the answer to d.
func readBack(t *testing.T, d *pipeline.Decision) *rlsv3.RateLimitResponse {
	t.Helper()
	b, dropped := appendAnswer(nil, d)
	if dropped != 0 {
		t.Errorf("%d headers were dropped", dropped)
	}
	m := new(rlsv3.RateLimitResponse)
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatalf("answer %x: %v", b, err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("answer %x has unknown fields", b)
	}
	return m
}

func metadataOf(fields map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err)
	}
	return s
}

func header(k, v string) *corev3.HeaderValue { return &corev3.HeaderValue{Key: k, Value: v} }

func denied() *pipeline.Decision {
	rule := &policy.Rule{ID: "tenant.user", Name: "tenant.user"}
	return &pipeline.Decision{
		Request: new(pipeline.Request), Set: new(policy.Set), Rule: rule,
		Code: pipeline.OverLimit, Source: limit.SourceAuthority, Cause: limit.CauseLimit, Retry: 11_001,
		Statuses: []pipeline.Status{
			{
				Code: pipeline.OverLimit, Rule: rule, HasLimit: true, Name: rule.Name, RequestsPerUnit: 10,
				Unit: policy.Minute, Multiplier: 2, ResetSeconds: 12,
			},
			{Code: pipeline.OK, HasLimit: true, RequestsPerUnit: math.MaxUint32, Unit: policy.Week, Multiplier: 1, Remaining: 4},
			{Code: pipeline.OK, Remaining: math.MaxUint32},
		},
	}
}

func TestDenial(t *testing.T) {
	got := readBack(t, denied())
	want := &rlsv3.RateLimitResponse{
		OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT,
		Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{
			{
				Code: rlsv3.RateLimitResponse_OVER_LIMIT,
				CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{
					Name: "tenant.user", RequestsPerUnit: 10, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE,
					UnitMultiplier: wrapperspb.UInt32(2),
				},
				DurationUntilReset: &durationpb.Duration{Seconds: 12},
			},
			{
				Code: rlsv3.RateLimitResponse_OK,
				CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{
					RequestsPerUnit: math.MaxUint32, Unit: rlsv3.RateLimitResponse_RateLimit_WEEK,
				},
				LimitRemaining: 4,
			},
			{Code: rlsv3.RateLimitResponse_OK, LimitRemaining: math.MaxUint32},
		},
		ResponseHeadersToAdd: []*corev3.HeaderValue{
			header("retry-after", "12"),
			header("retry-after-ms", "11001"),
			header("content-type", "application/problem+json"),
			header("cache-control", "no-store"),
		},
		RawBody: []byte(`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
			`"detail":"The limit for these requests is used up.","violated-policies":["tenant.user"],"retry_after":12}`),
		DynamicMetadata: metadataOf(map[string]any{
			"source": "authority", "cause": "limit", "rule": "tenant.user", "policy_version": "0",
		}),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// TestSparedDenial: a client sees nothing of a denial whose domain does not
// enforce, and whoever reads the metadata sees all of it.
func TestSparedDenial(t *testing.T) {
	d := denied()
	want := readBack(t, d)
	d.Code, d.Spared, d.Retry = pipeline.OK, true, -1
	want.OverallCode = rlsv3.RateLimitResponse_OK
	want.ResponseHeadersToAdd, want.RawBody = nil, nil
	want.DynamicMetadata.Fields["enforced"] = structpb.NewStringValue("false")
	if diff := cmp.Diff(want, readBack(t, d), protocmp.Transform()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func TestUnavailableDenial(t *testing.T) {
	d := denied()
	d.Source, d.Cause, d.Unavailable, d.Retry = limit.SourceFallback, limit.CauseUnavailable, true, 1
	got := readBack(t, d)
	var body map[string]any
	if err := json.Unmarshal(got.GetRawBody(), &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"type":              "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
		"title":             "Temporarily reduced capacity",
		"status":            503.0,
		"detail":            "The service that counts requests cannot be reached.",
		"violated-policies": []any{"tenant.user"},
		"retry_after":       1.0,
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if got := got.GetDynamicMetadata().GetFields()["deny_as"].GetStringValue(); got != "unavailable" {
		t.Errorf("deny_as = %q, want unavailable", got)
	}
}

// TestAllowedHasNoHeaders covers global shadow mode too: there everything is
// as for a denial, but the code is OK.
func TestAllowedHasNoHeaders(t *testing.T) {
	d := denied()
	d.Code, d.Unavailable = pipeline.OK, true
	got := readBack(t, d)
	if got.GetOverallCode() != rlsv3.RateLimitResponse_OK {
		t.Errorf("code = %v, want OK", got.GetOverallCode())
	}
	if len(got.GetResponseHeadersToAdd()) > 0 || len(got.GetRawBody()) > 0 {
		t.Errorf("an allowed answer has headers %v and the body %q, want neither", got.GetResponseHeadersToAdd(), got.GetRawBody())
	}
	if _, ok := got.GetDynamicMetadata().GetFields()["deny_as"]; ok {
		t.Error("an allowed answer has deny_as")
	}
	if got.GetStatuses()[0].GetCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Error("shadow mode must report the statuses as enforced")
	}
}

func TestHint(t *testing.T) {
	for _, c := range []struct {
		retry, seconds, millis int64
	}{
		{0, 1, 1},
		{1, 1, 1},
		{999, 1, 999},
		{1000, 1, 1000},
		{1001, 2, 1001},
		{60_000, 60, 60_000},
		{math.MaxInt64, math.MaxInt64/1000 + 1, math.MaxInt64},
	} {
		d := &pipeline.Decision{Code: pipeline.OverLimit, Retry: c.retry}
		if got, want := hintOf(d), (hint{true, c.millis, c.seconds}); got != want {
			t.Errorf("hint of a retry after %d ms = %+v, want %+v", c.retry, got, want)
		}
	}
	d := denied()
	d.Retry, d.Cause = -1, limit.CauseTooLarge
	got := readBack(t, d)
	for _, h := range got.GetResponseHeadersToAdd() {
		if strings.HasPrefix(h.GetKey(), "retry-after") {
			t.Errorf("a denial that no wait ends has %v", h)
		}
	}
	if strings.Contains(string(got.GetRawBody()), "retry_after") {
		t.Errorf("a denial that no wait ends has the body %s", got.GetRawBody())
	}
}

func TestResetIsClamped(t *testing.T) {
	for _, c := range []struct{ reset, want int64 }{{-5, 1}, {math.MinInt64, 1}, {1, 1}, {86400, 86400}, {math.MaxInt64, maxSeconds}} {
		d := denied()
		d.Statuses[0].ResetSeconds = c.reset
		got := readBack(t, d).GetStatuses()[0].GetDurationUntilReset()
		if got.GetSeconds() != c.want || got.CheckValid() != nil {
			t.Errorf("reset of %d s is sent as %v, want %d s", c.reset, got, c.want)
		}
	}
	d := denied()
	d.Statuses[0].ResetSeconds = 0
	if got := readBack(t, d).GetStatuses()[0].GetDurationUntilReset(); got != nil {
		t.Errorf("no reset is sent as %v", got)
	}
}

func TestStatusWithoutCodeTakesTheOverallOne(t *testing.T) {
	d := denied()
	d.Statuses[1].Code = 0
	if got := readBack(t, d).GetStatuses()[1].GetCode(); got != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("code = %v, want OVER_LIMIT", got)
	}
}

// TestHostileNames puts what a policy file could contain into every place of
// an answer that takes text from it.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{
		"\xff", "a\xffb", `quo"te`, `back\slash`, "a,b;c=d", "new\r\nline: x", "nul\x00", "\u2028", "<script>&", "tab\t",
		"ünï", "\x7f", "\u0085", strings.Repeat("x", 10_000), strings.Repeat("ü", 10_000), strings.Repeat("<", 10_000), "\xe2\x82", "�",
	} {
		d := denied()
		d.Rule = &policy.Rule{ID: name, Name: name}
		d.Statuses[0].Name = name
		got := readBack(t, d) // fails on invalid UTF-8
		sent := got.GetStatuses()[0].GetCurrentLimit().GetName()
		if strings.ContainsAny(sent, "\"\\,;\r\n\t\x00") || len(sent) > maxName || len(sent) == 0 {
			t.Errorf("name %.20q is sent as %q", name, sent)
		}
		for _, r := range sent {
			if r < ' ' || r > '~' {
				t.Errorf("name %.20q is sent as %q", name, sent)
			}
		}
		rule := got.GetDynamicMetadata().GetFields()["rule"].GetStringValue()
		if strings.ContainsAny(rule, "\r\n\t\x00\x7f\u0085") || len(rule) > maxMetadata || len(rule) == 0 {
			t.Errorf("rule %.20q is in the metadata as %q", name, rule)
		}
		var body struct {
			Policies []string `json:"violated-policies"`
		}
		if err := json.Unmarshal(got.GetRawBody(), &body); err != nil {
			t.Errorf("rule %.20q: body %q: %v", name, got.GetRawBody(), err)
		}
		if len(body.Policies) != 1 || body.Policies[0] != rule || len(got.GetRawBody()) > 2<<10 {
			t.Errorf("rule %.20q: policies = %q in a body of %d bytes, want %q", name, body.Policies, len(got.GetRawBody()), rule)
		}
		if strings.ContainsAny(string(got.GetRawBody()), "<>&\r\n") {
			t.Errorf("rule %.20q: body %q", name, got.GetRawBody())
		}
	}
	if got := limitName("per user/1"); got != "per user/1" {
		t.Errorf("a clean name is sent as %q", got)
	}
}

func TestValidHeader(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        bool
	}{
		{"retry-after", "12", true},
		{"x_y.z~!", "a\tb, ü", true},
		{"empty-value", "", true},
		{"", "v", false},
		{"Retry-After", "12", false},
		{":status", "200", false},
		{"a b", "v", false},
		{"a\r\nb", "v", false},
		{"ü", "v", false},
		{"a:b", "v", false},
		{"host", "v", false},
		{"content-length", "0", false},
		{"x", "a\r\nset-cookie: y", false},
		{"x", "a\nb", false},
		{"x", "a\x00b", false},
		{"x", "\x7f", false},
		{"x", "\xff", false},
		{"x", " padded", false},
	} {
		if got := validHeader(c.name, c.value); got != c.want {
			t.Errorf("validHeader(%q, %q) = %v, want %v", c.name, c.value, got, c.want)
		}
		var e encoder
		e.header(c.name, c.value)
		if sent := len(e.b) > 0; sent != c.want || e.dropped != map[bool]int{true: 0, false: 1}[c.want] {
			t.Errorf("header(%q, %q): sent = %v, dropped = %d", c.name, c.value, sent, e.dropped)
		}
	}
}

// TestLengths crosses the borders where a length takes another byte.
func TestLengths(t *testing.T) {
	for _, n := range []int{1, 126, 127, 128, 129, 16_383, 16_384, 16_385, 3 << 20} {
		var e encoder
		outer := e.begin(responseStatuses)
		inner := e.begin(statusLimit)
		e.string(limitNameField, strings.Repeat("x", n))
		e.end(inner)
		e.uint(statusRemaining, 7)
		e.end(outer)
		m := new(rlsv3.RateLimitResponse)
		if err := proto.Unmarshal(e.b, m); err != nil {
			t.Fatal(err)
		}
		if s := m.GetStatuses()[0]; len(s.GetCurrentLimit().GetName()) != n || s.GetLimitRemaining() != 7 {
			t.Errorf("a name of %d bytes came back as %d bytes", n, len(s.GetCurrentLimit().GetName()))
		}
	}
}

// FuzzAnswer holds for every text: the answer can be read by a stock decoder,
// its body is JSON, and nothing in it could break a header line.
func FuzzAnswer(f *testing.F) {
	f.Add("tenant.user", int64(1), int64(5), uint32(3), true, true, uint8(2))
	f.Add("\xff\r\n\"", int64(-1), int64(-1), uint32(0), false, false, uint8(9))
	f.Fuzz(func(t *testing.T, name string, retry, reset int64, remaining uint32, hasLimit, unavailable bool, code uint8) {
		d := denied()
		d.Rule = &policy.Rule{ID: name}
		d.Retry, d.Unavailable, d.Code = retry, unavailable, pipeline.Code(code%2+1)
		d.Statuses[0] = pipeline.Status{
			Code: pipeline.Code(code), HasLimit: hasLimit, Name: name, ResetSeconds: reset, Remaining: remaining, Multiplier: remaining,
		}
		m := readBack(t, d)
		if m.GetOverallCode() == rlsv3.RateLimitResponse_UNKNOWN || len(m.GetStatuses()) != len(d.Statuses) {
			t.Errorf("answer = %v", m)
		}
		for _, s := range m.GetStatuses() {
			if s.GetCode() == rlsv3.RateLimitResponse_UNKNOWN || s.GetDurationUntilReset().GetSeconds() < 0 {
				t.Errorf("status = %v", s)
			}
		}
		if b := m.GetRawBody(); len(b) > 0 && (!json.Valid(b) || !utf8.Valid(b)) {
			t.Errorf("body = %q", b)
		}
		for _, h := range m.GetResponseHeadersToAdd() {
			if !validHeader(h.GetKey(), h.GetValue()) {
				t.Errorf("header = %v", h)
			}
		}
	})
}

// TestAllocations is the budget of one call without grpc, decided by a real
// pipeline: the private copy of the message, and for a denial the two numbers
// of its headers. What the decision used is used again by the next call.
func TestAllocations(t *testing.T) {
	file := policy.Parse("policy.yaml", []byte(`
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000000, on_store_failure: closed}
  - key: guest
    rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: closed}
`))
	set, faults := policy.Compile([]*policy.File{file}, policy.Options{})
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	p := pipeline.New(pipeline.Config{Budget: time.Hour}, pipeline.Deps{
		Policy:     func() *policy.Set { return set },
		Authority:  memory.New(memory.Config{}, func() int64 { return 0 }, prometheus.NewRegistry()),
		Registerer: prometheus.NewRegistry(),
	})
	ctx := context.Background()
	for _, test := range []struct {
		key  string
		code pipeline.Code
		most float64
	}{
		{"user", pipeline.OK, 1},
		{"guest", pipeline.OverLimit, 3},
	} {
		message, err := AppendRequest(nil, &pipeline.Request{Domain: "edge", Descriptors: []pipeline.Descriptor{
			{Entries: []limit.Entry{{Key: test.key, Value: "U-17"}}},
			{Entries: []limit.Entry{{Key: "unknown", Value: "x"}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var c call
		var out []byte
		once := func() {
			if err := c.decode(message); err != nil {
				t.Fatal(err)
			}
			c.decision.Request = &c.request
			p.Decide(ctx, &c.decision)
			out, _ = appendAnswer(out[:0], &c.decision)
		}
		once() // a guest may come once
		if got := testing.AllocsPerRun(1000, func() { c.reset(); once() }); got > test.most {
			t.Errorf("a call of a %s allocates %v times, want at most %v", test.key, got, test.most)
		}
		if c.decision.Code != test.code {
			t.Errorf("a call of a %s is answered %d, want %d", test.key, c.decision.Code, test.code)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	m := wire(b, full())
	var d decoder
	b.ReportAllocs()
	for b.Loop() {
		if err := d.decode(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeGenerated(b *testing.B) {
	m := wire(b, full())
	b.ReportAllocs()
	for b.Loop() {
		if err := proto.Unmarshal(m, new(rlsv3.RateLimitRequest)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeAllowed(b *testing.B) {
	d := denied()
	d.Code = pipeline.OK
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		out, _ = appendAnswer(out[:0], d)
	}
}
