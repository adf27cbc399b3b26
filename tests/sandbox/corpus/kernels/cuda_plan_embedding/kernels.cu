// corpus: task=embedding family=embedding format=plan backend=cuda techniques=gather,float4
extern "C" __global__ void embedding(const long long* __restrict__ tokens, const float4* __restrict__ table, float4* __restrict__ y, int cols4) {
  const float4* row = table + tokens[blockIdx.x] * cols4;
  for (int i = threadIdx.x; i < cols4; i += blockDim.x) y[(long long)blockIdx.x * cols4 + i] = row[i];
}
