// Package rls is Envoy's RateLimitService (v3), in and out: it decodes and
// bounds requests, has them decided, and writes answers that Envoy can take.
// No other package knows Envoy's messages.
//
// It assumes that its peers are Envoys, not their clients. Nothing that a
// client can put into a request becomes an RPC error, because Envoy takes an
// error for an allow on open routes: bytes that are no UTF-8 are kept, and what
// exceeds a bound is denied as malformed. A call uses memory in proportion to
// its message, which Config.MaxRecvMsgSize bounds. Server is safe for
// concurrent use.
package rls

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// Defaults of Config.
const (
	// DefaultMaxRecvMsgSize is 2 × Envoy's header limit × the most descriptors,
	// rounded up: 2 × 60 KiB × 128 = 15 MiB. A descriptor's values come from
	// headers, and a message above the bound is refused by grpc before Weir
	// sees it, which open routes take for an allow.
	DefaultMaxRecvMsgSize = 16 << 20

	// DefaultUnixMode lets Envoy's user in by the socket's group.
	DefaultUnixMode = 0o660
)

// window is the size of both flow-control windows, in bytes. A fixed size
// above 64 KiB ends the pings with which grpc measures every connection, one
// for almost every call. It bounds what one connection can have unread.
const window = 1 << 20

// minPing is how often a peer may ping: as it likes. The peer is our own Envoy;
// grpc's default of five minutes, which 0 means, would close the connection of
// one with connection_keepalive, and fail its calls.
const minPing = time.Nanosecond

// stopGrace is how long handlers get to return after their connections were
// cut off. They end with their contexts.
const stopGrace = time.Second

// Unavailability says how a denial that is the limiter's own fault is told to
// Envoy (semantics S34).
type Unavailability uint8

// The forms.
const (
	// ByMetadata is OVER_LIMIT with deny_as in the metadata, which Envoy's
	// local_reply_config turns into a 503. It is the default.
	ByMetadata Unavailability = iota

	// ByError is the status UNAVAILABLE, for products whose Envoy
	// configuration cannot be changed. It loses headers and body, and allows
	// on routes that are open.
	ByError
)

// Config are the settings of a Server.
type Config struct {
	// TCP is a host:port to listen on, empty for none. Port 0 takes a free one.
	TCP string

	// Unix is the path of a Unix socket to listen on, empty for none; UnixMode
	// are its permissions, 0 means DefaultUnixMode.
	Unix     string
	UnixMode fs.FileMode

	// TakeOver takes the socket's path from a process that serves it. Without
	// it a start fails and names that process.
	TakeOver bool

	// MaxRecvMsgSize bounds one request, in bytes; 0 means
	// DefaultMaxRecvMsgSize. Every call can use three times as much memory.
	MaxRecvMsgSize int

	// StreamWorkers is the number of goroutines that are kept for calls; 0
	// starts one for each call.
	StreamWorkers uint32

	UnavailableAs Unavailability
}

// Deps are what a Server works with.
type Deps struct {
	// Decide fills d, whose Request and Set are given, and must set its Code.
	// It is called by many goroutines, each with its own Decision, and must
	// keep no part of it after it returns. ctx ends with Envoy's deadline, or
	// when Envoy gives the call up.
	Decide func(ctx context.Context, d *pipeline.Decision)

	// Set returns the policy set to decide by, nil before there is one; it is
	// called once for each request.
	Set func() *policy.Set

	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil registers nowhere
}

// Server serves the rate-limit service, gRPC health and reflection on all its
// listeners. Listen, then Serve, then Stop; each once.
type Server struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	grpc    *grpc.Server
	health  *health.Server
	buffers bufferPool
	calls   sync.Pool // of *call
	conns   connections

	faults rate.Sometimes // for logging faults that could repeat with every call

	tcp  net.Listener
	unix *unixListener

	stopping context.Context // ends when Stop begins
	stopNow  context.CancelFunc
	stopOnce sync.Once
}

// New makes a server that listens nowhere yet and is not serving.
func New(cfg Config, deps Deps) (*Server, error) {
	if deps.Decide == nil || deps.Set == nil {
		return nil, errors.New("rls: Decide and Set are required")
	}
	if cfg.TCP == "" && cfg.Unix == "" {
		return nil, errors.New("rls: nothing to listen on; set a TCP address or the path of a Unix socket")
	}
	if cfg.MaxRecvMsgSize == 0 {
		cfg.MaxRecvMsgSize = DefaultMaxRecvMsgSize
	}
	if cfg.UnixMode == 0 {
		cfg.UnixMode = DefaultUnixMode
	}
	s := &Server{
		cfg: cfg, deps: deps, log: deps.Logger,
		health: health.NewServer(),
		faults: rate.Sometimes{First: 3, Interval: 10 * time.Second},
	}
	s.stopping, s.stopNow = context.WithCancel(context.Background())
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	reg := deps.Registerer
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	s.metrics = newMetrics(reg, s.conns.gauge)
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec(&s.buffers)),
		grpc.MaxRecvMsgSize(cfg.MaxRecvMsgSize),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(window),
		grpc.NumStreamWorkers(cfg.StreamWorkers),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		// MaxConcurrentStreams stays unset: Envoy's first calls on a connection
		// do not wait for our settings, and those above it would be errors.
	)
	s.grpc.RegisterService(&serviceDesc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.SetServing(false)
	return s, nil
}

// healthNames are the services whose health can be asked for.
var healthNames = []string{"", "ratelimit", serviceName}

// SetServing says by gRPC health whether new work is welcome. Calls are
// answered either way; but as long as there is no policy set, they are
// answered UNAVAILABLE, and health stays NOT_SERVING.
func (s *Server) SetServing(serving bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serving && s.deps.Set() != nil {
		status = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames {
		s.health.SetServingStatus(name, status)
	}
}

// Listen binds all listeners; on an error it leaves none. From then on
// connections are taken, and wait for Serve.
func (s *Server) Listen(ctx context.Context) error {
	if s.cfg.TCP != "" {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", s.cfg.TCP)
		if err != nil {
			return fmt.Errorf("rls: tcp %s: %w; free the port or set another address", s.cfg.TCP, err)
		}
		s.tcp = l
	}
	if s.cfg.Unix != "" {
		l, err := listenUnix(ctx, s.cfg.Unix, s.cfg.UnixMode, s.cfg.TakeOver, s.log)
		if err != nil {
			if s.tcp != nil {
				err = errors.Join(err, s.tcp.Close())
				s.tcp = nil
			}
			return fmt.Errorf("rls: %w", err)
		}
		s.unix = l
	}
	return nil
}

// Serve answers calls until Stop, which makes it return nil. When one listener
// fails it ends all of them and returns the error.
func (s *Server) Serve() error {
	var listeners []net.Listener
	if s.tcp != nil {
		listeners = append(listeners, s.tcp)
	}
	var background sync.WaitGroup
	defer background.Wait()
	if s.unix != nil {
		listeners = append(listeners, s.unix)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		background.Go(func() { s.unix.watch(ctx) })
	}
	if len(listeners) == 0 {
		return errors.New("rls: Serve without Listen")
	}
	errs := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { errs <- s.grpc.Serve(&countingListener{Listener: l, conns: &s.conns}) }()
	}
	var all []error
	for range listeners {
		err := <-errs
		if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			all = append(all, fmt.Errorf("rls: serve: %w", err))
			s.grpc.Stop()
		}
	}
	return errors.Join(all...)
}

// TCPAddr is the address on TCP once Listen returned, "" for none.
func (s *Server) TCPAddr() string {
	if s.tcp == nil {
		return ""
	}
	return s.tcp.Addr().String()
}

// UnixPath is the path of the Unix socket, "" for none.
func (s *Server) UnixPath() string { return s.cfg.Unix }

// WaitIdle returns true when nobody is connected, false when ctx ends first.
func (s *Server) WaitIdle(ctx context.Context) bool { return s.conns.waitIdle(ctx) }

// Stop takes the socket's path away while it is still this server's own, lets
// calls end while ctx lasts, cuts off those that have not, and then gives the
// socket's lock to a successor. It returns an error when calls were cut off.
func (s *Server) Stop(ctx context.Context) error {
	var err error
	s.stopOnce.Do(func() { err = s.stop(ctx) })
	return err
}

func (s *Server) stop(ctx context.Context) error {
	s.health.Shutdown()
	s.stopNow()
	var errs []error
	if s.unix != nil {
		// Before the listener is closed, since only an open one keeps its
		// inode's number from being given to a successor's socket.
		errs = append(errs, s.unix.unlink())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("rls: stop: calls cut off: %w", context.Cause(ctx)))
		s.grpc.Stop()
		select {
		case <-done:
		case <-time.After(stopGrace):
			errs = append(errs, errors.New("rls: stop: a call ignores that its context ended"))
		}
	}
	// grpc closes listeners that it serves; these were perhaps never served.
	if s.tcp != nil {
		_ = s.tcp.Close()
	}
	if s.unix != nil {
		_ = s.unix.Close()
		errs = append(errs, s.unix.unlock())
	}
	return errors.Join(errs...)
}
