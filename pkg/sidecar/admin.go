package sidecar

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-rl/weir/pkg/policy"
)

// adminWriteTimeout leaves room for a profile of some minutes.
const adminWriteTimeout = 10 * time.Minute

// adminHandler serves whoever may log in to the machine.
func (s *Sidecar) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /config", s.config)
	mux.HandleFunc("GET /policy", s.policy)
	mux.HandleFunc("POST /-/reload", s.demandReload)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", redactedCmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	// A page in a browser here must not make anything happen either.
	return toLoopback(http.NewCrossOriginProtection().Handler(mux))
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
	writeJSON(w, http.StatusOK, shown)
}

type shownPolicy struct {
	Version uint64      `json:"version"`
	Digest  string      `json:"digest"`
	Loaded  time.Time   `json:"loaded"`
	Refused *refusal    `json:"refused,omitempty"`
	Domains int         `json:"domains"`
	Count   int         `json:"count"`
	Rules   []shownRule `json:"rules"`
}

// refusal is what is wrong with files that are newer than the set in force.
type refusal struct {
	At     time.Time    `json:"at"`
	Faults []shownFault `json:"faults"`
}

type shownFault struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"`
	Code    string `json:"code"`
	Value   string `json:"value,omitempty"`
	Message string `json:"message"`
	Mend    string `json:"mend"`
}

func showFaults(faults policy.Faults) []shownFault {
	shown := make([]shownFault, len(faults))
	for i, f := range faults {
		shown[i] = shownFault{
			File: f.File, Line: f.Line, Column: f.Column, Path: f.Path,
			Code: string(f.Code), Value: f.Value, Message: f.Message, Mend: f.Mend,
		}
	}
	return shown
}

type shownReload struct {
	Reloaded bool         `json:"reloaded"` // false also when the files did not change
	Version  uint64       `json:"version"`  // of the set in force now
	Digest   string       `json:"digest"`
	Faults   []shownFault `json:"faults,omitempty"`
}

// demandReload reads the policy files at once and answers with what came of it.
func (s *Sidecar) demandReload(w http.ResponseWriter, r *http.Request) {
	a, err := s.reload.demand(r.Context())
	if err != nil {
		plain(w, http.StatusServiceUnavailable, err.Error()+"\n")
		return
	}
	code := http.StatusOK
	if len(a.faults) > 0 {
		code = http.StatusUnprocessableEntity
	}
	writeJSON(w, code, shownReload{
		Reloaded: a.reloaded, Version: a.set.Version(), Digest: digestText(a.set), Faults: showFaults(a.faults),
	})
}

type shownRule struct {
	Domain         string `json:"domain"`
	Rule           string `json:"rule"`  // as in answers and metadata
	Label          string `json:"label"` // as in metrics and logs
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
	in := s.loaded.Load()
	set := in.set
	p := shownPolicy{
		Version: set.Version(), Digest: digestText(set), Loaded: in.at,
		Domains: len(set.Domains()), Count: len(set.Rules()), Rules: []shownRule{},
	}
	if a := s.reload.last.Load(); a != nil {
		p.Refused = &refusal{At: a.at, Faults: showFaults(a.faults)}
	}
	for _, r := range set.Rules() {
		shown := shownRule{
			Domain: r.Domain, Rule: r.ID, Label: r.Label(nil), File: r.File, Line: r.Line,
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
	writeJSON(w, http.StatusOK, p)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // The client is gone if this fails.
}
