package sidecar

import (
	"io"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	opsWriteTimeout = 30 * time.Second
	scrapeTimeout   = 10 * time.Second

	// scrapesInFlight allows for a pair of Prometheus servers and a person.
	scrapesInFlight = 4
)

// opsHandler serves the kubelet and Prometheus.
func (s *Sidecar) opsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{
		ErrorLog:            scrapeLog{s},
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesInFlight,
		Timeout:             scrapeTimeout,
	}))
	return mux
}

// healthz says that the process runs and answers. It looks at nothing else: a
// restart mends neither Redis nor a policy file.
func healthz(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") }

// readyz says whether Envoy should send requests here: a policy set is loaded
// and the service listens. A Redis that is down does not count, since every
// rule says what then happens, and Envoy cannot know better.
func (s *Sidecar) readyz(w http.ResponseWriter, _ *http.Request) {
	if why := s.notReady(); why != "" {
		plain(w, http.StatusServiceUnavailable, "not ready: "+why+"\n")
		return
	}
	plain(w, http.StatusOK, "ready\n")
}

func plain(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body) // The client is gone if this fails.
}

type scrapeLog struct{ s *Sidecar }

func (l scrapeLog) Println(v ...any) { l.s.log.Warn("scrape failed", "fault", v) }
