package authority

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
)

// metrics are this package's, registered once for each Redis.
type metrics struct {
	callSeconds prometheus.Histogram
	batchKeys   prometheus.Histogram
	batchChecks prometheus.Histogram
	errors      [256]prometheus.Counter // by class
	ambiguous   prometheus.Counter
	repeats     prometheus.Counter
	scriptLoads prometheus.Counter
	foreign     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, queue func() float64, offset func() float64) *metrics {
	m := &metrics{
		callSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_authority_call_seconds",
			Help:    "Time of one script call, from the send to the decoded reply, whatever came of it.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1},
		}),
		batchKeys: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_authority_batch_keys",
			Help:    "Distinct keys of one script call.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64},
		}),
		batchChecks: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_authority_batch_checks",
			Help:    "Checks of one script call.",
			Buckets: []float64{1, 4, 16, 64, 128, 256},
		}),
		ambiguous: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_authority_ambiguous_total",
			Help: "Requests that got no answer although their debit may have been executed.",
		}),
		repeats: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_authority_repeats_total",
			Help: "Script calls sent again after an answer that shows that nothing was executed.",
		}),
		scriptLoads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_authority_script_loads_total",
			Help: "Times the script was loaded into the store.",
		}),
		foreign: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_authority_foreign_states_total",
			Help: "Strings under Weir's keys that Weir did not write; they count as an unused budget.",
		}),
	}
	classes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_authority_errors_total",
		Help: "Requests that the store did not decide, by class.",
	}, []string{"class"})
	for _, c := range limit.Classes() {
		m.errors[c] = classes.WithLabelValues(c.String())
	}
	reg.MustRegister(m.callSeconds, m.batchKeys, m.batchChecks, m.ambiguous, m.repeats, m.scriptLoads, m.foreign, classes,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_authority_queue_calls",
			Help: "Requests that wait for the next script call.",
		}, queue),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_authority_clock_offset_seconds",
			Help: "The store's clock less this host's wall clock, a lower bound; 0 before the first answer.",
		}, offset),
	)
	return m
}

// failed counts one request that the store did not decide; sent says that the
// call that carried it may have been written.
func (m *metrics) failed(class limit.Class, sent bool) {
	m.errors[class].Inc()
	if sent && class.Ambiguous() {
		m.ambiguous.Inc()
	}
}
