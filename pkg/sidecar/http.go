package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// Bounds of both HTTP listeners. Nobody needs more: their clients are a
// kubelet, a Prometheus and a person.
const (
	httpConnections   = 128
	httpHeaderTimeout = 5 * time.Second
	httpReadTimeout   = 10 * time.Second
	httpIdleTimeout   = 2 * time.Minute
	httpHeaderBytes   = 16 << 10
	httpBodyBytes     = 64 << 10
)

// httpServer is one HTTP listener. The zero address listens nowhere.
type httpServer struct {
	name    string
	address string
	server  http.Server
	ln      net.Listener
}

func newHTTPServer(name, address string, handler http.Handler, writeTimeout time.Duration, log *slog.Logger) *httpServer {
	return &httpServer{
		name:    name,
		address: address,
		server: http.Server{
			Handler:           http.MaxBytesHandler(handler, httpBodyBytes),
			ReadHeaderTimeout: httpHeaderTimeout,
			ReadTimeout:       httpReadTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       httpIdleTimeout,
			MaxHeaderBytes:    httpHeaderBytes,
			ErrorLog:          slog.NewLogLogger(log.With("listener", name).Handler(), slog.LevelWarn),
		},
	}
}

func (h *httpServer) listen(ctx context.Context) error {
	if h.address == "" {
		return nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", h.address)
	if err != nil {
		return err
	}
	h.ln = netutil.LimitListener(ln, httpConnections)
	return nil
}

// serve blocks until shutdown.
func (h *httpServer) serve() error {
	if h.ln == nil {
		return nil
	}
	if err := h.server.Serve(h.ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// shutdown lets running requests end while ctx lasts, then cuts them off.
func (h *httpServer) shutdown(ctx context.Context) error {
	if h.ln == nil {
		return nil
	}
	err := h.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, h.server.Close())
	}
	// Shutdown closes only listeners that Serve has seen.
	if cerr := h.ln.Close(); cerr != nil && !errors.Is(cerr, net.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	return err
}

// addr is where it listens, "" for nowhere.
func (h *httpServer) addr() string {
	if h.ln == nil {
		return ""
	}
	return h.ln.Addr().String()
}
