package rls

import (
	"context"
	"runtime/debug"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/pkg/pipeline"
)

const (
	serviceName = "envoy.service.ratelimit.v3.RateLimitService"
	methodName  = "ShouldRateLimit"
)

// serviceDesc is the generated description with a handler that works on our
// own messages. Its metadata names the file that reflection serves.
var serviceDesc = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*handler)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: methodName, Handler: shouldRateLimit}},
	Metadata:    rlsv3.RateLimitService_ServiceDesc.Metadata,
}

// handler exists because grpc wants an interface for the type of a service.
type handler interface {
	shouldRateLimit(ctx context.Context, receive func(any) error) (any, error)
}

func shouldRateLimit(srv any, ctx context.Context, receive func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	return srv.(handler).shouldRateLimit(ctx, receive)
}

// The errors that a call can end in. A client of Envoy can cause none of them.
var (
	errNoDomain      = status.Error(codes.InvalidArgument, "the domain is empty")
	errNoDescriptors = status.Error(codes.InvalidArgument, "there are no descriptors")
	errNoPolicy      = status.Error(codes.Unavailable, "no policy is loaded yet")
	errUnavailable   = status.Error(codes.Unavailable, "the store that counts requests cannot be reached")
	errPanic         = status.Error(codes.Internal, "the request could not be decided, see the log")
)

// shouldRateLimit answers one call: it decodes (1 in docs/ARCHITECTURE.md),
// has the request decided, and encodes (9).
func (s *Server) shouldRateLimit(ctx context.Context, receive func(any) error) (out any, err error) {
	start := time.Now()
	counter := s.metrics.failed
	defer func() {
		if p := recover(); p != nil {
			// The call's memory is not used again: whoever panicked may have
			// left it with somebody.
			s.panicked(serviceName, p)
			counter = s.metrics.failed
			out, err = nil, errPanic
		}
		counter.Inc()
		s.metrics.seconds.Observe(time.Since(start).Seconds())
	}()

	c, ok := s.calls.Get().(*call)
	if !ok {
		c = new(call)
	}
	code, out, err := s.answer(ctx, c, receive)
	switch code {
	case pipeline.OK:
		counter = s.metrics.ok
	case pipeline.OverLimit:
		counter = s.metrics.overLimit
	}
	c.reset()
	s.calls.Put(c)
	return out, err
}

func (s *Server) answer(ctx context.Context, c *call, receive func(any) error) (pipeline.Code, any, error) {
	if err := s.request(c, receive); err != nil {
		s.metrics.decodeErrors.Inc()
		return 0, nil, err
	}
	if c.request.Malformed {
		s.metrics.malformed.Inc()
	}
	d := &c.decision
	d.Request, d.Set = &c.request, s.deps.Set()
	if d.Set == nil {
		return 0, nil, errNoPolicy
	}
	s.deps.Decide(ctx, d)
	switch {
	case d.Code != pipeline.OK && d.Code != pipeline.OverLimit:
		// Envoy would take an answer without a code for an allow.
		s.faults.Do(func() { s.log.Error("no code was decided", "cause", d.Cause.String()) })
		return 0, nil, errPanic
	case d.Code == pipeline.OverLimit && d.Unavailable && s.cfg.UnavailableAs == ByError:
		return 0, nil, errUnavailable
	}
	buf := s.buffers.Get(0)
	b, dropped := appendAnswer(*buf, d)
	*buf = b
	if dropped > 0 {
		s.metrics.headersDropped.Add(float64(dropped))
		s.faults.Do(func() { s.log.Error("response headers were dropped", "count", dropped) })
	}
	return d.Code, (*answer)(buf), nil
}

// request receives and checks one request. envoyproxy/ratelimit answers
// UNKNOWN where this says INVALID_ARGUMENT; Envoy treats all codes alike.
func (s *Server) request(c *call, receive func(any) error) error {
	if err := receive(c); err != nil {
		return err // grpc's own: too large, compressed, broken off
	}
	switch {
	case c.err != nil:
		return status.Error(codes.InvalidArgument, c.err.Error())
	case c.request.Domain == "":
		return errNoDomain
	case len(c.request.Descriptors) == 0:
		return errNoDescriptors
	}
	return nil
}

// panicked counts a panic, and logs it unless it repeats with every call.
func (s *Server) panicked(service string, p any) {
	s.metrics.panics.Inc()
	s.faults.Do(func() { s.log.Error("a call panicked", "service", service, "panic", p, "stack", string(debug.Stack())) })
}

// unary guards the calls of health.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.panicked(info.FullMethod, p)
			err = errPanic
		}
	}()
	return next(ctx, req)
}

// stream guards the streams of health and reflection, and ends those that
// watch for ever when the server stops.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.panicked(info.FullMethod, p)
			err = errPanic
		}
	}()
	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	return next(srv, &streamWithContext{ServerStream: ss, ctx: ctx})
}

type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

// Context is the stream's, which also ends when the server stops.
func (s *streamWithContext) Context() context.Context { return s.ctx }
