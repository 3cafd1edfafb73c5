package authority

import (
	"fmt"
	"strings"
	"testing"
)

// instrument returns a Lua text that counts how often each of its blocks is
// entered, and where in the text the blocks begin. A block is what follows
// then, else, do or a function's parameters; an if without an else gets one,
// so that both ways of every condition are counted.
//
// The result answers {reply, counts}, both in MessagePack.
func instrument(text string) (counted string, blocks []string) {
	var out strings.Builder
	enter := func(line int, what string) {
		blocks = append(blocks, fmt.Sprintf("line %d: %s", line, what))
		fmt.Fprintf(&out, " hit[%d] = hit[%d] + 1 ", len(blocks), len(blocks))
	}
	var nest []string // open blocks: "if" until its else was met, "else", "do", "function"
	line, parameters := 1, false
	for _, tok := range luaTokens(text) {
		last := ""
		if len(nest) > 0 {
			last = nest[len(nest)-1]
		}
		if tok == "end" {
			if last == "if" {
				out.WriteString(" else")
				enter(line, "no condition of the if held")
			}
			nest = nest[:len(nest)-1]
		}
		if tok == "else" {
			nest[len(nest)-1] = "else"
		}
		out.WriteString(tok)
		switch tok {
		case "if", "function":
			nest = append(nest, tok)
			parameters = tok == "function"
		case "do":
			nest = append(nest, tok)
			enter(line, "do")
		case "then", "else":
			enter(line, tok)
		case ")":
			if parameters {
				parameters = false
				enter(line, "function")
			}
		}
		line += strings.Count(tok, "\n")
	}
	const result = "return cmsgpack.pack(reply)\n"
	body, ok := strings.CutSuffix(out.String(), result)
	if !ok {
		panic("the script does not end in " + result)
	}
	head := fmt.Sprintf("local hit = {} for i = 1, %d do hit[i] = 0 end ", len(blocks))
	return head + body + "return { cmsgpack.pack(reply), cmsgpack.pack(hit) }\n", blocks
}

// luaTokens cuts a text into words, comments, strings and single bytes. It
// knows as much of Lua as the script uses: no long brackets, no repeat.
func luaTokens(text string) []string {
	var tokens []string
	for len(text) > 0 {
		n := 1
		switch c := text[0]; {
		case strings.HasPrefix(text, "--"):
			if n = strings.IndexByte(text, '\n'); n < 0 {
				n = len(text)
			}
		case c == '\'' || c == '"':
			for text[n] != c {
				if text[n] == '\\' {
					n++
				}
				n++
			}
			n++
		case isWord(c):
			for n < len(text) && isWord(text[n]) {
				n++
			}
		}
		tokens = append(tokens, text[:n])
		text = text[n:]
	}
	return tokens
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func TestInstrumentCountsEveryBlock(t *testing.T) {
	const text = "local function f(a) -- if then\n  if a then return 'do' elseif b then x() end\nend\nfor i = 1, 2 do f(i) end\n" +
		"return cmsgpack.pack(reply)\n"
	_, blocks := instrument(text)
	want := []string{
		"line 1: function", "line 2: then", "line 2: then", "line 2: no condition of the if held", "line 4: do",
	}
	if fmt.Sprint(blocks) != fmt.Sprint(want) {
		t.Errorf("blocks = %q, want %q", blocks, want)
	}
}
