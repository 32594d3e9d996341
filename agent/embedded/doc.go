// Package embedded is the model inside Parley, embedded/extractive-1: honest, deterministic, without a key and without a
// network. It makes nothing up, because it writes nothing: it finds the sentences of the agent's own knowledge and prompt
// that answer a message, and quotes them word for word. Where none does, it says that it does not know.
//
// An agent's texts are cut into sentences and indexed once for each version of the agent (index.go). A message is reduced to
// stems, its snippet found by BM25 (Robertson and Zaragoza, 2009), and the best sentences of that snippet quoted in their
// order. What it declines is decided by coverage: how much of the message's weight, rare words counting most, the snippet
// knows at all. A word that the agent's texts nowhere use weighs as much as the rarest: that is what keeps it from
// answering a question about a museum with the shop's opening hours.
//
// Every sentence of an answer stands in the agent's prompt, in its knowledge, or in Templates.
package embedded
