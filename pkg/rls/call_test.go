package rls

import (
	"math"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// TestAnswerText holds every line that an answer can have, of services that
// send more than Weir does, and worse.
func TestAnswerText(t *testing.T) {
	a := &Answer{message: &rlsv3.RateLimitResponse{
		OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT,
		Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{
			{
				Code: rlsv3.RateLimitResponse_OVER_LIMIT,
				CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{
					Name: `per "user"`, RequestsPerUnit: 10, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE,
					UnitMultiplier: wrapperspb.UInt32(2),
				},
				DurationUntilReset: &durationpb.Duration{Seconds: 12, Nanos: 5},
			},
			{
				Code: 9, LimitRemaining: math.MaxUint32, DurationUntilReset: &durationpb.Duration{Seconds: -1},
				CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{Unit: 42},
				Quota:        &rlsv3.RateLimitResponse_Quota{Requests: 3, Id: "q"},
			},
			{},
		},
		ResponseHeadersToAdd: []*corev3.HeaderValue{
			{Key: "x", Value: "plain, with \"quotes\""}, {Key: "a\r\nb", Value: "c\nd"}, {Key: "raw", RawValue: []byte{0xff}},
		},
		RequestHeadersToAdd: []*corev3.HeaderValue{{Key: "x-tier", Value: "gold"}},
		RawBody:             []byte(`{"status":429}`),
		Quota: &rlsv3.RateLimitResponse_Quota{
			Requests:            1,
			ExpirationSpecifier: &rlsv3.RateLimitResponse_Quota_ValidUntil{ValidUntil: &timestamppb.Timestamp{Seconds: 1}},
		},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"b": structpb.NewStringValue("text"),
			"a": structpb.NewNumberValue(1.5),
			"c": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"y": structpb.NewNullValue(), "x": structpb.NewBoolValue(true)}}),
			"d": structpb.NewNumberValue(math.NaN()),
		}},
	}}
	want := `overall: OVER_LIMIT
descriptor 0: OVER_LIMIT, limit 10 per 2 MINUTE "per \"user\"", remaining 0, reset 12.000000005s
descriptor 1: 9, limit 0 per 42, remaining 4294967295, reset -1s, quota 3 id "q"
descriptor 2: UNKNOWN, remaining 0
response header: x: plain, with "quotes"
response header: "a\r\nb": "c\nd"
response header: raw: "\xff"
request header: x-tier: gold
body: {"status":429}
quota: 1 until 1970-01-01T00:00:01Z
metadata: a: 1.5
metadata: b: "text"
metadata: c: {"x":true,"y":null}
metadata: d: "NaN"
`
	if diff := cmp.Diff(want, a.Text()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	empty := &Answer{message: new(rlsv3.RateLimitResponse)}
	if got, want := empty.Text(), "overall: UNKNOWN\n"; got != want || empty.Code() != 0 {
		t.Errorf("an empty answer is %q, code %d, want %q, 0", got, empty.Code(), want)
	}
}

func TestAppendRequestRefusesAWeek(t *testing.T) {
	r := &pipeline.Request{Domain: "d", Descriptors: []pipeline.Descriptor{{Limit: &pipeline.Override{Unit: policy.Week, Multiplier: 1}}}}
	if _, err := AppendRequest(nil, r); err == nil {
		t.Error("AppendRequest with a week = nil, want an error")
	}
}
