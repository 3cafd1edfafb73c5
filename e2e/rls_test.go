package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
	"github.com/weir-rl/weir/pkg/sidecar"
)

// client calls the service as Envoy does, over one connection, and reads answers with the generated messages.
type client struct{ conn *grpc.ClientConn }

func dial(t *testing.T, target string) client {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawRequests{encoding.GetCodecV2(grpcproto.Name)})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return client{conn}
}

func (c client) call(t *testing.T, r *pipeline.Request) (*rlsv3.RateLimitResponse, error) {
	t.Helper()
	message, err := rls.AppendRequest(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer := new(rlsv3.RateLimitResponse)
	return answer, c.conn.Invoke(ctx, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, message, answer)
}

// rawRequests sends bytes as they are, since the generated messages take no strings that are not UTF-8.
type rawRequests struct{ encoding.CodecV2 }

func (c rawRequests) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func one(key, value string) []pipeline.Descriptor {
	return []pipeline.Descriptor{{Entries: []limit.Entry{{Key: key, Value: value}}}}
}

// alone starts a sidecar that the test ends, on the shared Redis unless change says otherwise.
func alone(t *testing.T, change func(*sidecar.Config)) *weir {
	t.Helper()
	policy, err := routes.policyPath()
	if err != nil {
		t.Fatal(err)
	}
	c := settings(redistest.Shared(t).URL(), name(t), "", policy)
	if change != nil {
		change(&c)
	}
	w, err := startWeir(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// U12 of the peer: requests that are none. The peer answers UNKNOWN; Envoy treats all codes alike, and people who
// read logs learn more from INVALID_ARGUMENT. Only an Envoy that is set up wrongly can send these, never its clients.
func TestRequestsThatAreNone(t *testing.T) {
	w := alone(t, nil)
	c := dial(t, w.Addrs().TCP)
	for _, r := range []struct {
		what    string
		request pipeline.Request
		want    string
	}{
		{"no domain", pipeline.Request{Descriptors: one("user", "ann")}, "domain"},
		{"no descriptors", pipeline.Request{Domain: "e2e"}, "descriptors"},
	} {
		_, err := c.call(t, &r.request)
		if s := status.Convert(err); s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), r.want) {
			t.Errorf("%s: %v, want InvalidArgument that says so", r.what, err)
		}
	}
	if got := w.ofCode(t, "error"); got != 2 {
		t.Errorf("the sidecar counts %d errors, want 2", got)
	}
}

// U12 of the peer, TestCacheError: it answers UNKNOWN when Redis fails, which opens open routes whatever the rule
// wants. Here the rule says what happens, and that is an answer.
func TestAnswerWithoutRedis(t *testing.T) {
	w := alone(t, func(c *sidecar.Config) { c.Store.URL, c.Decision.Budget = "unix:///nowhere/redis.sock", shortBudget })
	answer, err := dial(t, w.Addrs().TCP).call(t, &pipeline.Request{Domain: "e2e", Descriptors: one("user", "ann")})
	if err != nil || answer.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT ||
		answer.GetDynamicMetadata().GetFields()["deny_as"].GetStringValue() != "unavailable" {
		t.Errorf("without Redis: %v, %v, want a denial as unavailable", answer, err)
	}
}

// U12 of the peer, TestInitialLoadError: it starts without a policy and answers UNKNOWN. Weir does not start, and
// says why.
func TestNoStartWithoutAPolicy(t *testing.T) {
	c := settings(redistest.Shared(t).URL(), name(t), "", filepath.Join(t.TempDir(), "none.yaml"))
	if _, err := sidecar.New(sidecar.Options{Config: c}); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("New without a policy: %v, want an error that names the file", err)
	}
}

// rls.max_recv_msg_size is what refuses a message, and nothing below it does. A message that is refused is counted.
func TestMaxRecvMsgSize(t *testing.T) {
	request := &pipeline.Request{Domain: "e2e", Descriptors: one("raw", strings.Repeat("x", 6<<20))}
	w := alone(t, func(c *sidecar.Config) { c.RLS.MaxRecvMsgSize = 6 << 20 })
	_, err := dial(t, w.Addrs().TCP).call(t, request)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message above the bound: %v, want ResourceExhausted", err)
	}
	if got := w.ofCode(t, "error"); got != 1 {
		t.Errorf("the sidecar counts %d errors, want 1", got)
	}
	w = alone(t, func(c *sidecar.Config) { c.RLS.MaxRecvMsgSize = 6<<20 + 100 })
	answer, err := dial(t, w.Addrs().TCP).call(t, request)
	if got := answer.GetStatuses(); err != nil || len(got) != 1 || got[0].GetLimitRemaining() != 2 {
		t.Errorf("a message below the bound: %v, %v, want an answer with 2 left", answer, err)
	}
}

func (w *weir) ofCode(t *testing.T, code string) uint64 {
	t.Helper()
	return w.counter(t, "weir_rls_requests_total", "code", code)
}
