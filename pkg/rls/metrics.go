package rls

import "github.com/prometheus/client_golang/prometheus"

// metrics are this package's, registered once for each Server.
type metrics struct {
	ok, overLimit, failed prometheus.Counter // requests by what was answered
	seconds               prometheus.Histogram
	malformed             prometheus.Counter
	decodeErrors          prometheus.Counter
	panics                prometheus.Counter
	headersDropped        prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, connections func() float64) *metrics {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_rls_requests_total",
		Help: "Rate-limit requests by answer: ok, over_limit, or error, which leaves the decision to Envoy.",
	}, []string{"code"})
	m := &metrics{
		ok:        requests.WithLabelValues("ok"),
		overLimit: requests.WithLabelValues("over_limit"),
		failed:    requests.WithLabelValues("error"),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_rls_request_seconds",
			Help:    "Time from the arrival of a request's headers to its encoded answer.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1, .25, 1},
		}),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_rls_malformed_total",
			Help: "Requests with more descriptors or entries than the bound; they are denied.",
		}),
		decodeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_rls_decode_errors_total",
			Help: "Messages that are no RateLimitRequest, are too large, or lack the domain or all descriptors.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_rls_panics_total",
			Help: "Calls that ended in a panic, a fault of Weir; they are answered INTERNAL.",
		}),
		headersDropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_rls_headers_dropped_total",
			Help: "Response headers left out because their name or value was not fit to send.",
		}),
	}
	reg.MustRegister(requests, m.seconds, m.malformed, m.decodeErrors, m.panics, m.headersDropped,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "weir_rls_connections",
			Help: "Open connections to the rate-limit service.",
		}, connections))
	return m
}
