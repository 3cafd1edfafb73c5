package sidecar

import (
	"runtime"
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
	rules   prometheus.Gauge
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
	return &metrics{
		ready:   gauge("weir_sidecar_ready", "1 while this sidecar asks for requests, 0 before and while it drains."),
		success: gauge("weir_policy_last_load_successful", "1 when the last load of the policy files succeeded, else 0."),
		loaded:  gauge("weir_policy_loaded_timestamp_seconds", "When the policy set that decides was loaded, by this machine's clock."),
		version: gauge("weir_policy_version", "The version of the policy set that decides, 0 when its files have none."),
		rules:   gauge("weir_policy_rules", "The number of rules of the policy set that decides."),
	}
}

func (m *metrics) published(set *policy.Set, at time.Time) {
	m.success.Set(1)
	m.loaded.Set(float64(at.UnixMilli()) / 1000)
	m.version.Set(float64(set.Version()))
	m.rules.Set(float64(len(set.Rules())))
}
