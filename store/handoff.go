package store

// HandoffTool is the name of the tool by which an agent with Handoff asks for a person. No other tool may be called so.
const HandoffTool = "handoff_to_human"

// Handoff is an agent's wish that a person take over. In a chat it is told to the business's backend, which alone knows where
// its people are; the session stays as it was.
type Handoff struct {
	Reason  string  `json:"reason"`
	Summary *string `json:"summary,omitempty"` // of what was said so far
}

// Handoff is the one that a finished run came to; nil without one.
func (r *Run) Handoff() *Handoff {
	if r.Status != RunStatusFinished {
		return nil // its caller was told nothing, and may ask again
	}
	return HandoffOf(r.Steps)
}

// HandoffOf is the handoff that steps came to; nil without one.
func HandoffOf(steps []RunStep) *Handoff {
	for _, step := range steps {
		if step.Handoff != nil {
			return step.Handoff
		}
	}
	return nil
}
