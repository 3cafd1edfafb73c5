package sidecar

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/weir-rl/weir/pkg/policy"
)

// Build says which program runs.
type Build struct{ Version, Revision string }

type metrics struct {
	ready   prometheus.Gauge
	success prometheus.Gauge
	loaded  prometheus.Gauge
	version prometheus.Gauge
	behind  prometheus.Gauge
	rules   prometheus.Gauge
	info    *prometheus.GaugeVec // version, digest; one series
	watch   prometheus.Gauge
	loads   prometheus.Counter
	refusal prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, build Build) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "weir_build_info",
		Help: "Always 1; the labels say which program runs.",
	}, []string{"version", "revision", "goversion"})
	info.WithLabelValues(build.Version, build.Revision, runtime.Version()).Set(1)
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	set := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "weir_policy_info",
		Help: "Always 1; the labels say which policy set decides: the version of its files, 0 for none, and the beginning of the digest of their names and contents.",
	}, []string{"version", "digest"})
	reg.MustRegister(set)
	return &metrics{
		info:    set,
		watch:   gauge("weir_policy_watched", "1 while the policy files are watched, 0 while only the poll finds what changes."),
		loads:   counter("weir_policy_loads_total", "Policy sets that were loaded and published, that of the start included. Files that did not change are not loaded again."),
		refusal: counter("weir_policy_load_failures_total", "Loads that were refused, so that the set before decides on; once for each change of the files and for each demand."),

		ready:   gauge("weir_sidecar_ready", "1 while this sidecar asks for requests, 0 before and while it drains."),
		success: gauge("weir_policy_last_load_successful", "1 when the last load of the policy files succeeded, else 0."),
		loaded:  gauge("weir_policy_loaded_timestamp_seconds", "When the policy set that decides was loaded, by this machine's clock."),
		version: gauge("weir_policy_version", "The version of the policy set that decides, 0 when its files have none."),
		behind:  gauge("weir_policy_version_behind", "How far the version of the policy set that decides is below the highest one that the store has seen in the namespace; 0 when it is not, or with a store in memory."),
		rules:   gauge("weir_policy_rules", "The number of rules of the policy set that decides."),
	}
}

func (m *metrics) published(set *policy.Set, at time.Time) {
	m.success.Set(1)
	m.loads.Inc()
	m.info.Reset()
	m.info.WithLabelValues(strconv.FormatUint(set.Version(), 10), digestText(set)).Set(1)
	m.loaded.Set(float64(at.UnixMilli()) / 1000)
	m.version.Set(float64(set.Version()))
	m.rules.Set(float64(len(set.Rules())))
}

func (m *metrics) refused() {
	m.success.Set(0)
	m.refusal.Inc()
}

func (m *metrics) watched(yes bool) {
	if yes {
		m.watch.Set(1)
	} else {
		m.watch.Set(0)
	}
}
