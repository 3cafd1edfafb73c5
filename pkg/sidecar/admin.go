package sidecar

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"
)

// adminWriteTimeout leaves room for a profile of some minutes.
const adminWriteTimeout = 10 * time.Minute

// adminHandler serves whoever may log in to the machine.
func (s *Sidecar) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /config", s.config)
	mux.HandleFunc("GET /policy", s.policy)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", redactedCmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return toLoopback(mux)
}

// toLoopback refuses requests that were sent to another name than the
// machine's own: a web page can have its own name resolve to 127.0.0.1, and
// have a browser here fetch what the page then reads.
func toLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if host != "" && host != "localhost" && (err != nil || !ip.Unmap().IsLoopback()) {
			plain(w, http.StatusForbidden, "ask for 127.0.0.1, [::1] or localhost\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// redactedCmdline stands in for pprof.Cmdline, which would show the password
// of --store.url. Tools want it only for the name of the program.
func redactedCmdline(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "sidecar") }

type shownSetting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

// config shows the settings in force and where each came from.
func (s *Sidecar) config(w http.ResponseWriter, _ *http.Request) {
	shown := make([]shownSetting, len(table))
	for i := range table {
		t := &table[i]
		shown[i] = shownSetting{Name: t.Path, Value: t.Show(&s.cfg), Origin: s.origin(t.Path)}
	}
	writeJSON(w, shown)
}

type shownPolicy struct {
	Version uint64      `json:"version"`
	Loaded  time.Time   `json:"loaded"`
	Domains int         `json:"domains"`
	Count   int         `json:"count"`
	Rules   []shownRule `json:"rules"`
}

type shownRule struct {
	Domain         string `json:"domain"`
	Rule           string `json:"rule"`
	File           string `json:"file"`
	Line           int    `json:"line"`
	Algorithm      string `json:"algorithm,omitempty"`
	Limit          int64  `json:"limit"`
	WindowMillis   int64  `json:"window_ms,omitempty"`
	Unlimited      bool   `json:"unlimited,omitempty"`
	Shadow         bool   `json:"shadow,omitempty"`
	Quota          bool   `json:"quota,omitempty"`
	Overdraw       string `json:"overdraw,omitempty"`
	OnStoreFailure string `json:"on_store_failure,omitempty"`
}

// policy shows the set that decides.
func (s *Sidecar) policy(w http.ResponseWriter, _ *http.Request) {
	set := s.set.Load()
	p := shownPolicy{Version: set.Version(), Loaded: s.loaded, Count: len(set.Rules()), Rules: []shownRule{}}
	domains := map[string]bool{}
	for _, r := range set.Rules() {
		domains[r.Domain] = true
		shown := shownRule{
			Domain: r.Domain, Rule: r.ID, File: r.File, Line: r.Line,
			Unlimited: r.Unlimited, Shadow: r.Shadow, Quota: r.Quota,
		}
		if r.Params != nil {
			shown.Algorithm = r.Params.Algorithm.String()
			shown.Limit = r.Params.Limit
			shown.WindowMillis = r.Params.Window
			shown.Overdraw = r.Overdraw.String()
			shown.OnStoreFailure = r.OnStoreFailure.String()
		}
		p.Rules = append(p.Rules, shown)
	}
	p.Domains = len(domains)
	writeJSON(w, p)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // The client is gone if this fails.
}
