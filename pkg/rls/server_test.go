package rls_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
	"github.com/weir-rl/weir/pkg/rls"
)

func dial(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestTCPAndUnixAtOnce(t *testing.T) {
	path := socketIn(t)
	s := start(t, rls.Config{TCP: "127.0.0.1:0", Unix: path}, rls.Deps{})
	for _, target := range []string{s.TCPAddr(), "unix://" + path} {
		a, err := rls.Call(within(t), target, request([]limit.Entry{{Key: "k", Value: "v"}}))
		if err != nil {
			t.Fatal(err)
		}
		want := "overall: OK\ndescriptor 0: OK, remaining 0\n" +
			"metadata: cause: \"no_rule\"\nmetadata: policy_version: \"0\"\nmetadata: source: \"none\"\n"
		if diff := cmp.Diff(want, a.Text()); diff != "" {
			t.Errorf("answer at %s (-want +got):\n%s", target, diff)
		}
	}
	if got := s.metric(t, "weir_rls_requests_total", "code", "ok"); got != 2 {
		t.Errorf("requests counted = %v, want 2", got)
	}
	eventually(t, "no connection is open", func() bool { return s.metric(t, "weir_rls_connections") == 0 })
	if !s.WaitIdle(within(t)) {
		t.Error("WaitIdle() = false with nobody connected")
	}
}

func TestErrorsThatNoClientCanCause(t *testing.T) {
	s := start(t, rls.Config{MaxRecvMsgSize: 1 << 10}, rls.Deps{})
	one := []limit.Entry{{Key: "k", Value: "v"}}
	for _, c := range []struct {
		name string
		r    *pipeline.Request
		want codes.Code
	}{
		{"no domain", &pipeline.Request{Descriptors: []pipeline.Descriptor{{Entries: one}}}, codes.InvalidArgument},
		{"no descriptors", &pipeline.Request{Domain: "test"}, codes.InvalidArgument},
		{"too large", request([]limit.Entry{{Key: "k", Value: strings.Repeat("x", 2<<10)}}), codes.ResourceExhausted},
	} {
		_, err := rls.Call(within(t), s.TCPAddr(), c.r)
		if got := status.Code(err); got != c.want {
			t.Errorf("%s: error = %v, want %v", c.name, err, c.want)
		}
	}
	if got := s.metric(t, "weir_rls_decode_errors_total"); got != 3 {
		t.Errorf("decode errors counted = %v, want 3", got)
	}
	if got := s.metric(t, "weir_rls_requests_total", "code", "error"); got != 3 {
		t.Errorf("errors counted = %v, want 3", got)
	}
	// After all that the server still answers.
	if _, err := rls.Call(within(t), s.TCPAddr(), request(one)); err != nil {
		t.Error(err)
	}
}

func TestNoPolicySet(t *testing.T) {
	var set atomic.Pointer[policy.Set]
	s := start(t, rls.Config{}, rls.Deps{Set: set.Load})
	health := healthpb.NewHealthClient(dial(t, s.TCPAddr()))
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} {
			got, err := health.Check(within(t), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || got.GetStatus() != want {
				t.Errorf("health of %q = %v, %v, want %v", name, got, err, want)
			}
		}
	}
	r := request([]limit.Entry{{Key: "k", Value: "v"}})
	if _, err := rls.Call(within(t), s.TCPAddr(), r); status.Code(err) != codes.Unavailable {
		t.Errorf("call without a policy set: %v, want Unavailable", err)
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	set.Store(new(policy.Set))
	s.SetServing(true)
	check(healthpb.HealthCheckResponse_SERVING)
	if _, err := rls.Call(within(t), s.TCPAddr(), r); err != nil {
		t.Error(err)
	}
	s.SetServing(false)
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	if _, err := rls.Call(within(t), s.TCPAddr(), r); err != nil {
		t.Errorf("a server that drains must answer: %v", err)
	}
}

func TestReflectionListsTheService(t *testing.T) {
	s := start(t, rls.Config{}, rls.Deps{})
	stream, err := reflectionpb.NewServerReflectionClient(dial(t, s.TCPAddr())).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	list := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	var names []string
	for _, svc := range list.GetListServicesResponse().GetService() {
		names = append(names, svc.GetName())
	}
	const name = "envoy.service.ratelimit.v3.RateLimitService"
	if !slices.Contains(names, name) {
		t.Errorf("services = %v, want %s among them", names, name)
	}
	file := ask(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name},
	})
	if len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("file of %s = %v, want descriptors", name, file)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

func TestStopEndsStreamsThatWatch(t *testing.T) {
	s := start(t, rls.Config{}, rls.Deps{})
	stream, err := healthpb.NewHealthClient(dial(t, s.TCPAddr())).Watch(within(t), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s.stop(t) // fails when it had to cut the stream off
}

func TestPanicIsAnsweredAndCounted(t *testing.T) {
	s := start(t, rls.Config{}, rls.Deps{Decide: func(_ context.Context, d *pipeline.Decision) {
		if d.Request.Domain == "panic" {
			panic("a fault of Weir")
		}
		if d.Request.Domain != "undecided" {
			d.Code = pipeline.OK
		}
	}})
	r := request([]limit.Entry{{Key: "k", Value: "v"}})
	for _, domain := range []string{"panic", "undecided"} {
		r.Domain = domain
		if _, err := rls.Call(within(t), s.TCPAddr(), r); status.Code(err) != codes.Internal {
			t.Errorf("%s: error = %v, want Internal", domain, err)
		}
	}
	if got := s.metric(t, "weir_rls_panics_total"); got != 1 {
		t.Errorf("panics counted = %v, want 1", got)
	}
	r.Domain = "good"
	if _, err := rls.Call(within(t), s.TCPAddr(), r); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

func TestDeadlineOfTheCallReachesDecide(t *testing.T) {
	got := make(chan bool, 1)
	s := start(t, rls.Config{}, rls.Deps{Decide: func(ctx context.Context, d *pipeline.Decision) {
		_, ok := ctx.Deadline()
		got <- ok
		allow(ctx, d)
	}})
	if _, err := rls.Call(within(t), s.TCPAddr(), request([]limit.Entry{{Key: "k"}})); err != nil {
		t.Fatal(err)
	}
	if !<-got {
		t.Error("Decide got no deadline")
	}
}

func TestStopCutsOffWhatDoesNotEnd(t *testing.T) {
	entered := make(chan struct{})
	s := prepare(t, rls.Config{}, rls.Deps{Decide: func(ctx context.Context, d *pipeline.Decision) {
		close(entered)
		<-ctx.Done()
		allow(ctx, d)
	}})
	if err := s.Listen(within(t)); err != nil {
		t.Fatal(err)
	}
	go func() { s.served <- s.Serve() }()
	called := make(chan error, 1)
	go func() {
		_, err := rls.Call(within(t), s.TCPAddr(), request([]limit.Entry{{Key: "k"}}))
		called <- err
	}()
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Stop(ctx); err == nil {
		t.Error("Stop() = nil, want an error about a call that was cut off")
	}
	if err := <-called; status.Code(err) != codes.Unavailable {
		t.Errorf("the call = %v, want Unavailable", err)
	}
	if err := <-s.served; err != nil {
		t.Errorf("Serve() = %v", err)
	}
}

func TestUnavailableByError(t *testing.T) {
	s := start(t, rls.Config{UnavailableAs: rls.ByError}, rls.Deps{Decide: func(_ context.Context, d *pipeline.Decision) {
		d.Code, d.Cause, d.Unavailable = pipeline.OverLimit, limit.CauseUnavailable, d.Request.Domain == "closed"
	}})
	r := request([]limit.Entry{{Key: "k"}})
	if a, err := rls.Call(within(t), s.TCPAddr(), r); err != nil || a.Code() != pipeline.OverLimit {
		t.Errorf("a plain denial = %v, %v, want OVER_LIMIT", a, err)
	}
	r.Domain = "closed"
	if _, err := rls.Call(within(t), s.TCPAddr(), r); status.Code(err) != codes.Unavailable {
		t.Errorf("an unavailable one = %v, want Unavailable", err)
	}
}

func TestNewAndListenRefuse(t *testing.T) {
	if _, err := rls.New(rls.Config{TCP: "127.0.0.1:0"}, rls.Deps{}); err == nil {
		t.Error("New() without Decide = nil")
	}
	if _, err := rls.New(rls.Config{}, deps(rls.Deps{})); err == nil {
		t.Error("New() with nothing to listen on = nil")
	}
	s := start(t, rls.Config{}, rls.Deps{})
	second := prepare(t, rls.Config{TCP: s.TCPAddr()}, rls.Deps{})
	if err := second.Listen(within(t)); err == nil || !strings.Contains(err.Error(), s.TCPAddr()) {
		t.Errorf("Listen() on a used port = %v, want an error that names it", err)
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	s := prepare(t, rls.Config{}, rls.Deps{})
	problems, err := testutil.GatherAndLint(s.registry)
	if err != nil || len(problems) > 0 {
		t.Error(fmt.Sprint(problems, err))
	}
}
