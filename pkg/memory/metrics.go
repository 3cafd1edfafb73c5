package memory

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	overflow prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, entries func() float64) *metrics {
	m := &metrics{
		overflow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_memory_overflow_total",
			Help: "Checks of new keys that met their rule's shared bucket because the table was full.",
		}),
	}
	reg.MustRegister(m.overflow, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_memory_entries",
		Help: "States in the embedded store.",
	}, entries))
	return m
}
