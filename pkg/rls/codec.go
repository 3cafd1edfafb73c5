package rls

import (
	"sync"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/weir-rl/weir/pkg/pipeline"
)

// call is the memory of one call, used again by later ones. Nobody may keep
// any of it beyond the call.
type call struct {
	decoder
	decision pipeline.Decision
	err      error // the message is no request
}

// reset forgets what the call referred to.
func (c *call) reset() {
	c.decoder.reset()
	c.decision.Reset()
	c.err = nil
}

// answer is an encoded response in a pooled buffer.
type answer []byte

// codec passes the service's own messages through, a request decoded and a
// response as its bytes, and leaves those of health and reflection to
// protobuf. It has one name for both, since the name is on the wire.
type codec struct {
	proto   encoding.CodecV2
	buffers *bufferPool
}

func newCodec(buffers *bufferPool) codec {
	return codec{proto: encoding.GetCodecV2(grpcproto.Name), buffers: buffers}
}

// Name is the content subtype.
func (c codec) Name() string { return grpcproto.Name }

// Marshal hands the bytes of an answer over to the transport, which gives them
// back to the pool.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*answer); ok {
		return mem.BufferSlice{mem.NewBuffer((*[]byte)(a), c.buffers)}, nil
	}
	return c.proto.Marshal(v)
}

// Unmarshal decodes a call. What is no request is kept as the call's error:
// grpc would turn one returned here into INTERNAL.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if call, ok := v.(*call); ok {
		call.err = call.unmarshal(data)
		return nil
	}
	return c.proto.Unmarshal(data, v)
}

// Sizes of pooled answers in bytes. Below 1 KiB grpc does not pool; an answer
// to a few descriptors is a few hundred bytes.
const (
	answerSize    = 2 << 10
	maxAnswerSize = 64 << 10
)

// bufferPool holds buffers for answers. Its zero value is ready.
type bufferPool struct{ pool sync.Pool }

// Get returns a buffer of that length.
func (p *bufferPool) Get(length int) *[]byte {
	b, ok := p.pool.Get().(*[]byte)
	if !ok || cap(*b) < length {
		b = new([]byte)
		*b = make([]byte, max(length, answerSize))
	}
	*b = (*b)[:length]
	return b
}

// Put takes a buffer back unless it grew so large that it should not stay.
func (p *bufferPool) Put(b *[]byte) {
	if cap(*b) <= maxAnswerSize {
		p.pool.Put(b)
	}
}
